import { describe, expect, it } from "vitest";
import { readAddress, withDefaults, writeAddress } from "../src/settings";

describe("the address", () => {
  const defaults = { gain: 1, rule: "mgaps" };
  const allowed = { gain: [0.3, 20] as [number, number], rule: ["mgaps", "gauss_newton"] };

  it("survives a round trip", () => {
    const { panel, given } = readAddress(writeAddress("paper", { gain: 2.5, rule: "gauss_newton" }));
    expect(panel).toBe("paper");
    expect(withDefaults(defaults, given, allowed)).toEqual({ gain: 2.5, rule: "gauss_newton" });
  });

  it("cannot leave the ranges", () => {
    for (const [query, expected] of [
      ["gain=1e9", { gain: 20, rule: "mgaps" }],
      ["gain=-1", { gain: 0.3, rule: "mgaps" }],
      ["gain=NaN&rule=evil", defaults],
      ["gain=&rule=", defaults],
      ["gain=<script>", defaults],
    ] as const) {
      expect(withDefaults(defaults, new URLSearchParams(query), allowed)).toEqual(expected);
    }
    expect(readAddress("").panel).toBe("");
  });
});
