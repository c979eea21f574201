/** The guard's decisions in words: lamps for the present, and a list of past events. */
import { element } from "../controls";

interface Words {
  lamp: string;
  /** The text of an event; without it, only the lamp lights. */
  event?: string;
  /** An ordinary decision, and no alarm. */
  calm?: true;
}

const WORDS: Record<string, Words> = {
  REFUSED: { lamp: "measurement rejected", event: "a measurement was rejected; the model's prediction replaced it" },
  FAILSAFE: { lamp: "safe control", event: "too many rejected measurements: the safe control took over" },
  LIMITED: { lamp: "step of gains shortened", calm: true },
  SATURATED: { lamp: "motor at its limit", calm: true },
  HELD: { lamp: "gains must not grow", event: "motors are at their limits too often: gains must not grow" },
  GATED: { lamp: "outlier ignored", event: "an outlier was ignored" },
  RESET: { lamp: "sensitivity reset", event: "the sensitivity was too large, and was reset" },
  EXPLODED: { lamp: "rollback", event: "rollback: the cost exploded, the last good gains are back" },
  UNSTABLE: { lamp: "rollback", event: "rollback: the loop stopped contracting, the last good gains are back" },
  DAMPED: { lamp: "oscillation damped", event: "the loop oscillated by itself: gains were lowered" },
  REPAIRED: { lamp: "repaired", event: "the controller repaired its own state" },
  SAVED: { lamp: "good gains saved", calm: true, event: "a good window ended: these gains are now the last good gains" },
};
/** Lamps stay on for so many seconds. */
const GLOW = 0.6;
/** Events of the same kind within so many seconds are one. */
const SAME = 3;
const KEPT = 6;

export class GuardReport {
  readonly element: HTMLElement;
  readonly #lamps = new Map<string, HTMLElement>();
  readonly #list = element("ol", { class: "events", "aria-label": "Events of the guard" });
  readonly #last = new Map<string, number>();

  constructor() {
    const lamps = element("ul", { class: "lamps", "aria-label": "The guard's decisions now" });
    for (const { lamp, calm } of Object.values(WORDS)) {
      if (this.#lamps.has(lamp)) continue;
      const one = element("li", calm ? { class: "calm" } : {}, lamp);
      this.#lamps.set(lamp, one);
      lamps.append(one);
    }
    this.element = element("section", { class: "guard", "aria-label": "Guard" }, element("h3", {}, "Guard of the robot that tunes itself"), lamps, this.#list);
    this.clear();
  }

  /** Take the decisions of one step. */
  take(decisions: string[], seconds: number): void {
    for (const name of decisions) {
      const event = WORDS[name]?.event;
      const before = this.#last.get(name) ?? -Infinity;
      if (event && seconds - before > SAME) this.note(event, seconds);
      this.#last.set(name, seconds);
    }
  }

  note(text: string, seconds: number): void {
    if (this.#list.firstElementChild?.className === "none") this.#list.replaceChildren();
    this.#list.prepend(element("li", {}, element("time", {}, `${seconds.toFixed(1)} s`), ` ${text}`));
    while (this.#list.childElementCount > KEPT) this.#list.lastElementChild!.remove();
  }

  /** Light the lamps of the last moments. */
  draw(seconds: number): void {
    const lit = new Set<string>();
    for (const [name, when] of this.#last) if (seconds - when < GLOW && WORDS[name]) lit.add(WORDS[name].lamp);
    for (const [text, lamp] of this.#lamps) lamp.classList.toggle("lit", lit.has(text));
  }

  clear(): void {
    this.#last.clear();
    this.#list.replaceChildren(element("li", { class: "none" }, "no event yet"));
  }
}
