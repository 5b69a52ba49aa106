// What a generated client knows of the collections: the right calls compile, the wrong ones do not.
import type { components, paths } from "./description";

type Schemas = components["schemas"];
type Task = Schemas["tasks_record"];

export const created: Schemas["tasks_create"] = {
  title: "a",
  state: "open",
  project: "019a9f00-0000-7000-8000-000000000001",
  points: null,
};
export const changed: Schemas["tasks_update"] = { points: 3, extra: { a: [1] } };
export const replaced: Schemas["tasks_replace"] = { title: "b", project: "x" };

export function read(task: Task): [string, string, number | null, string | null, string | null] {
  return [task.id, task.title, task.points, task.loud, task.created_by];
}

type List = paths["/api/v1/records/tasks"]["get"];
type Page = List["responses"][200]["content"]["application/json"];
export const titles = (page: Page): string[] => page.items.map((task) => task.title);
export const query: List["parameters"]["query"] = { points: [1, 2], sort: "-points", limit: 5 };

type Created = paths["/api/v1/records/tasks"]["post"]["responses"][201];
export const id = (task: Created["content"]["application/json"]): string => task.id;
export type Gone = paths["/api/v1/records/tasks/{record_id}"]["delete"]["responses"][204];

// @ts-expect-error a title is required
export const lacking: Schemas["tasks_create"] = { state: "open", project: "x" };
// @ts-expect-error points are a number
export const wrong: Schemas["tasks_update"] = { points: "3" };
// @ts-expect-error no such choice
export const unknownChoice: Schemas["tasks_update"] = { state: "lost" };
// @ts-expect-error no such field
export const unknownField: Schemas["tasks_update"] = { nope: 1 };
// @ts-expect-error computed fields are not sent
export const computed: Schemas["tasks_update"] = { loud: "A" };
// @ts-expect-error points may be null
export const points = (task: Task): number => task.points;
// @ts-expect-error no such collection
export type Nothing = paths["/api/v1/records/nothing"];
