// What the compiler knows of the collections: the right calls compile, the wrong ones do not.
import { Client, etagOf, f } from "@atrium/client";
import { fileTokens, openFile } from "@atrium/client/node";
import type { Collections } from "./collections.js";

const client = new Client<Collections>({ baseUrl: "https://atrium.example", tokens: fileTokens("t") });
const posts = client.records("posts");

export async function right(): Promise<void> {
  const post = await posts.create({ title: "a", views: 1, live: null, state: "open", tags: ["a"] });
  const title: string = post.title;
  const views: number | null = post.views;
  const filter = posts.f("views").gte(10).and(posts.f("state").in(["open", "done"]));
  const page = await posts.list({ filter, sort: ["-views", "title"], fields: ["title"] });
  const names: string[] = page.items.map((item) => item.title + item.id + title + views);
  for await (const one of posts.iterate({ filter: f("author.name").eq("x") })) names.push(one.title);
  const cover = await client.files.upload(await openFile("cover.png"));
  await posts.update(post.id, { cover: cover.id, due: "2026-11-20" }, { ifMatch: etagOf(post) });
  await posts.update(post.id, { cover: post.cover });
  const shown = await posts.get(post.id, { expand: ["posts_via_parent.parent"], fileLinks: 60 });
  for (const child of shown.expand?.posts_via_parent?.items ?? []) {
    names.push(child.title, child.expand?.parent?.title ?? "");
  }
  const more: boolean | undefined = shown.expand?.posts_via_parent?.has_more;
  await posts.list({ sort: ["-parent.title", "title"] });
  const found = await posts.list({ search: "a b*", highlight: true, fields: ["title"] });
  names.push(found.items[0]?._highlights?.title ?? "");
  for await (const one of posts.iterate({ search: "a", highlight: true })) {
    const marked: string | undefined = one._highlights?.title;
    names.push(marked ?? one.title);
  }
  for await (const change of await client.changes.follow(["posts"])) {
    if (change.type === "update") names.push(change.data.title);
    if (change.type === "delete") names.push(change.data.id);
  }
  const groups = await client.api.GET("/api/v1/groups", { params: { query: { limit: 5 } } });
  const first: string | undefined = groups.data?.items[0]?.name;
  names.push(first ?? "", String(more));
}

export async function wrong(): Promise<void> {
  // @ts-expect-error a title is required
  await posts.create({ views: 1 });
  // @ts-expect-error views are a number
  await posts.update("id", { views: "1" });
  // @ts-expect-error no such choice
  await posts.update("id", { state: "lost" });
  // @ts-expect-error no such field
  await posts.update("id", { nope: 1 });
  // @ts-expect-error views may be null
  const views: number = (await posts.get("id")).views;
  // @ts-expect-error it was not asked for
  const title: string = (await posts.get("id", { fields: ["views"] })).title;
  // @ts-expect-error no such field to sort by
  await posts.list({ sort: "-nope" });
  // @ts-expect-error no such field to follow
  await posts.list({ sort: "nope.title" });
  // @ts-expect-error nothing refers by it
  void (await posts.get("id")).expand?.posts_via_title;
  // @ts-expect-error a search is a text
  await posts.list({ search: 1 });
  // @ts-expect-error a highlight is a text
  const marked: number | undefined = (await posts.list({ search: "a" })).items[0]?._highlights?.title;
  // @ts-expect-error no such field to filter by
  posts.f("nope");
  // @ts-expect-error views compare with numbers
  posts.f("views").eq("1");
  // @ts-expect-error no such choice to filter by
  posts.f("state").eq("lost");
  // @ts-expect-error no such collection
  client.records("nothing");
  // @ts-expect-error no such collection to follow
  await client.changes.follow(["nothing"]);
  // @ts-expect-error no such path
  await client.api.GET("/api/v1/nothing");
  void [views, title, marked];
}
