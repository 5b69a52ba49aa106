/** A value as the filter language writes it. */
export type Value = string | number | bigint | boolean | Date | null;
type Comparable<V> = Exclude<Extract<V, Value>, null> | (string extends V ? Date : never);

/** A condition of the filter language; `String(filter)` is its text. */
export class Filter {
  constructor(
    private readonly text: string,
    private readonly binding: "atom" | "&&" | "||" = "atom",
  ) {}

  and(...others: Filter[]): Filter {
    return join("&&", [this, ...others]);
  }

  or(...others: Filter[]): Filter {
    return join("||", [this, ...others]);
  }

  not(): Filter {
    return new Filter(`!(${this.text})`);
  }

  /** Returns the text as a part of a longer condition. */
  within(operator: "&&" | "||"): string {
    return this.binding === "atom" || this.binding === operator ? this.text : `(${this.text})`;
  }

  toString(): string {
    return this.text;
  }
}

/** A field, or a dotted path along references, to compare. */
export class Field<V = Value> {
  constructor(private readonly name: string) {}

  eq(value: Comparable<V> | Field<unknown> | null): Filter {
    return this.#compare("=", value);
  }

  ne(value: Comparable<V> | Field<unknown> | null): Filter {
    return this.#compare("!=", value);
  }

  lt(value: Comparable<V>): Filter {
    return this.#compare("<", value);
  }

  lte(value: Comparable<V>): Filter {
    return this.#compare("<=", value);
  }

  gt(value: Comparable<V>): Filter {
    return this.#compare(">", value);
  }

  gte(value: Comparable<V>): Filter {
    return this.#compare(">=", value);
  }

  isNull(): Filter {
    return this.eq(null);
  }

  isNotNull(): Filter {
    return this.ne(null);
  }

  in(values: Comparable<V>[]): Filter {
    return new Filter(`${this.name} IN ${list(values)}`);
  }

  notIn(values: Comparable<V>[]): Filter {
    return new Filter(`${this.name} NOT IN ${list(values)}`);
  }

  /** Matches the whole text, ignoring ASCII case; `%` stands for anything, `\%` for itself, `\\` for a backslash. */
  like(pattern: string): Filter {
    return this.#compare("~", pattern);
  }

  notLike(pattern: string): Filter {
    return this.#compare("!~", pattern);
  }

  startsWith(text: string): Filter {
    return this.like(`${escapeLike(text)}%`);
  }

  endsWith(text: string): Filter {
    return this.like(`%${escapeLike(text)}`);
  }

  includes(text: string): Filter {
    return this.like(`%${escapeLike(text)}%`);
  }

  /** Tests whether a list, such as a `multi_select` or `text_list`, has the text. */
  contains(text: string): Filter {
    return new Filter(`@contains(${this.name}, ${literal(text)})`);
  }

  #compare(operator: string, value: Value | Field<unknown>): Filter {
    const text = value instanceof Field ? value.name : literal(value);
    return new Filter(`${this.name} ${operator} ${text}`);
  }
}

const NAME = /^@?[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$/;

/** Returns a field by its name, dotted to follow references. */
export function f<V = Value>(name: string): Field<V> {
  if (!NAME.test(name)) throw new TypeError(`No name of a field: ${name}`);
  return new Field<V>(name);
}

/**
 * Tests whether a record of a collection that the caller may list meets a condition. Inside, `f("x")` is a field of
 * that collection, and `f("@record.x")` one of the filtered record.
 */
export const anyOf = (collection: string, condition: Filter): Filter =>
  new Filter(`@any(${collectionName(collection)}, ${condition})`);

/** Returns the number of records that `anyOf` would find, to compare. */
export const countOf = (collection: string, condition: Filter): Field<number> =>
  new Field<number>(`@count(${collectionName(collection)}, ${condition})`);

/** Tests whether the account has a flag, by its plan or beside it; `f("@account.plan")` is the plan. */
export function flag(name: string): Filter {
  if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) throw new TypeError(`No name of a flag: ${name}`);
  return new Filter(`@flag(${literal(name)})`);
}

export const and = (first: Filter, ...others: Filter[]): Filter => first.and(...others);
export const or = (first: Filter, ...others: Filter[]): Filter => first.or(...others);
export const not = (filter: Filter): Filter => filter.not();

/** Returns a pattern that matches exactly this text. */
export const escapeLike = (text: string): string => text.replace(/[\\%]/g, "\\$&");

/** Returns a value as the filter language writes it. */
export function literal(value: Value): string {
  if (value instanceof Date) return literal(value.toISOString());
  if (typeof value === "string") return `"${value.replace(/["\\]/g, "\\$&")}"`;
  if (typeof value === "number" && !Number.isFinite(value)) {
    throw new TypeError(`No number of the filter language: ${value}`);
  }
  return String(value);
}

function collectionName(name: string): string {
  if (!/^[A-Za-z][A-Za-z0-9_]*$/.test(name)) throw new TypeError(`No name of a collection: ${name}`);
  return name;
}

const list = (values: Value[]): string => `[${values.map(literal).join(", ")}]`;

function join(operator: "&&" | "||", filters: Filter[]): Filter {
  const text = filters.map((filter) => filter.within(operator)).join(` ${operator} `);
  return new Filter(text, operator);
}
