/** The settings of a panel live in the address: `#paper?gain=2&seed=7`. */
export type Values = Record<string, number | string>;

export interface Address {
  panel: string;
  given: URLSearchParams;
}

export function readAddress(hash: string): Address {
  const [panel = "", query = ""] = hash.replace(/^#/, "").split("?", 2);
  return { panel, given: new URLSearchParams(query) };
}

export function writeAddress(panel: string, values: Values): string {
  const query = new URLSearchParams(Object.entries(values).map(([name, value]) => [name, String(value)]));
  return `#${panel}?${query}`;
}

/** Return the defaults, replaced by the numbers of the address that are inside their ranges, and by known words. */
export function withDefaults<T extends Values>(
  defaults: T,
  given: URLSearchParams,
  allowed: { [K in keyof T]: [number, number] | readonly string[] },
): T {
  const values: Values = { ...defaults };
  for (const name of Object.keys(defaults)) {
    const text = given.get(name);
    if (text === null || text === "") continue;
    const range = allowed[name]!;
    if (typeof defaults[name] === "string") {
      if ((range as readonly string[]).includes(text)) values[name] = text;
    } else {
      const [low, high] = range as [number, number];
      const number = Number(text);
      if (Number.isFinite(number)) values[name] = Math.min(Math.max(number, low), high);
    }
  }
  return values as T;
}
