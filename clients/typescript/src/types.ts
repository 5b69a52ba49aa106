/** A part of a JSON Schema, as the description has it. */
interface Schema {
  $ref?: string;
  anyOf?: Schema[];
  oneOf?: Schema[];
  enum?: unknown[];
  type?: string | string[];
  items?: Schema;
  properties?: { [name: string]: Schema };
  required?: string[];
  additionalProperties?: boolean | Schema;
  description?: string;
}

interface Description {
  paths: { [path: string]: unknown };
  components: { schemas: { [name: string]: Schema } };
}

const PATH = /^\/api\/v1\/records\/([^/{}]+)$/;
const KINDS = ["record", "item", "create", "replace", "update"] as const;

/** Returns a TypeScript module with the types of the collections that a description has. */
export function typesOf(description: unknown): string {
  const { paths, components } = description as Description;
  const names = Object.keys(paths).flatMap((path) => PATH.exec(path)?.[1] ?? []);
  const bodies = names.sort().map((name) => collection(name, components.schemas));
  return [
    "// Written by `atrium types`.",
    "export interface Collections {",
    ...bodies,
    "}",
    "",
  ].join("\n");
}

function collection(name: string, schemas: Description["components"]["schemas"]): string {
  const print = printer(schemas);
  const record = schemas[`${name}_record`] ?? schemas[`${name}_item`] ?? schemas["RecordObject"]!;
  const shapes = KINDS.flatMap((kind) => {
    const schema = kind === "record" ? record : schemas[`${name}_${kind}`];
    if (kind === "item" && !schema) return [];
    return `    ${kind}: ${schema ? print(schema, "    ") : "never"};`;
  });
  return [`  ${key(name)}: {`, ...shapes, "  };"].join("\n");
}

function printer(schemas: { [name: string]: Schema }) {
  const print = (schema: Schema, indent: string): string => {
    const union = schema.anyOf ?? schema.oneOf;
    if (schema.$ref) return referred(schema.$ref.split("/").at(-1)!, indent);
    if (union) return alternatives(union.map((one) => print(one, indent)));
    if (schema.enum) return alternatives(schema.enum.map((value) => JSON.stringify(value)));
    return alternatives([schema.type ?? []].flat().map((type) => ofType(type, schema, indent)));
  };

  // Records refer to each other in circles, so each has its type once.
  const referred = (name: string, indent: string): string => {
    const [, collection, kind] = /^(.+)_(record|item)$/.exec(name) ?? [];
    if (collection && name in schemas) return `Collections[${JSON.stringify(collection)}]["${kind}"]`;
    return print(schemas[name] ?? {}, indent);
  };

  const ofType = (type: string, schema: Schema, indent: string): string => {
    if (type === "integer") return "number";
    if (type === "array") return `Array<${print(schema.items ?? {}, indent)}>`;
    return type === "object" ? object(schema, indent) : type;
  };

  const object = (schema: Schema, indent: string): string => {
    const inner = `${indent}  `;
    const members = Object.entries(schema.properties ?? {}).map(([name, value]) => {
      const mark = schema.required?.includes(name) ? "" : "?";
      return `${comment(value, inner)}${inner}${key(name)}${mark}: ${print(value, inner)};\n`;
    });
    if (!members.length) {
      const { additionalProperties: values } = schema;
      return `{ [name: string]: ${typeof values === "object" ? print(values, indent) : "unknown"} }`;
    }
    return `{\n${members.join("")}${indent}}`;
  };
  return print;
}

const alternatives = (types: string[]): string => [...new Set(types)].join(" | ") || "unknown";

const comment = ({ description }: Schema, indent: string): string =>
  description ? `${indent}/** ${description.replaceAll("*/", "*\\/")} */\n` : "";

const key = (name: string): string => (/^[A-Za-z_]\w*$/.test(name) ? name : JSON.stringify(name));
