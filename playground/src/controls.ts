/** Labelled inputs. Each calls `changed` with its new value, by mouse, touch or keyboard. */

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export interface SliderOptions {
  name: string;
  label: string;
  low: number;
  high: number;
  value: number;
  /** Equal distances of the slider are equal factors. */
  logarithmic?: boolean;
  step?: number;
  show: (value: number) => string;
  changed: (value: number) => void;
}

const POSITIONS = 200;

export function slider(options: SliderOptions): HTMLElement {
  const { low, high, logarithmic = false, step } = options;
  const toPosition = (value: number) =>
    POSITIONS * (logarithmic ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const toValue = (position: number) => {
    const share = position / POSITIONS;
    const value = logarithmic ? low * (high / low) ** share : low + share * (high - low);
    return step === undefined ? Number(value.toPrecision(2)) : Math.round(value / step) * step;
  };
  const id = `control-${options.name}`;
  const output = element("output", { for: id }, options.show(options.value));
  const input = element("input", { id, type: "range", min: "0", max: `${POSITIONS}`, step: "1", name: options.name });
  input.value = `${toPosition(options.value)}`;
  const describe = (value: number) => {
    output.textContent = options.show(value);
    input.setAttribute("aria-valuetext", options.show(value));
  };
  describe(options.value);
  input.addEventListener("input", () => {
    const value = toValue(Number(input.value));
    describe(value);
    options.changed(value);
  });
  return element("div", { class: "control" }, element("label", { for: id }, options.label), output, input);
}

export interface ChoiceOptions<T extends string> {
  name: string;
  label: string;
  choices: Record<T, string>;
  value: T;
  changed: (value: T) => void;
}

export function choice<T extends string>(options: ChoiceOptions<T>): HTMLElement {
  const id = `control-${options.name}`;
  const select = element("select", { id, name: options.name });
  for (const [value, text] of Object.entries<string>(options.choices)) select.append(element("option", { value }, text));
  select.value = options.value;
  select.addEventListener("change", () => options.changed(select.value as T));
  return element("div", { class: "control" }, element("label", { for: id }, options.label), select);
}

export function button(text: string, pressed: () => void): HTMLButtonElement {
  const made = element("button", { type: "button" }, text);
  made.addEventListener("click", pressed);
  return made;
}

/** Controls that belong together, under a heading. */
export function group(heading: string, ...children: Node[]): HTMLElement {
  return element("div", { class: "group", role: "group", "aria-label": heading }, element("h3", {}, heading), ...children);
}

export function buttons(...children: Node[]): HTMLElement {
  return element("div", { class: "buttons" }, ...children);
}

/** A link to the present settings, and the settings as files: the Python script and TOML are written when they are asked for. */
export function takeAway(name: string, python: () => string, toml: () => string, c: { name: string; source: string; header: string }): HTMLElement {
  const copy = button("Copy link", async () => {
    const copied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
    copy.textContent = copied ? "Link copied" : "Copy the address above";
    setTimeout(() => (copy.textContent = "Copy link"), 2000);
  });
  return group(
    "Take these settings with you",
    buttons(
      copy,
      button("Python", () => download(`${name}.py`, python())),
      button("TOML", () => download(`${name}.toml`, toml())),
      element("a", { href: c.source, download: `${c.name}.c` }, "C"),
      element("a", { href: c.header, download: `${c.name}.h` }, "C header"),
    ),
  );
}

const WIDE = "(min-width: 761px)";

/** The address of the guide. The documentation site serves the playground beside its own pages, and changes this address. */
const guide = () => document.querySelector<HTMLMetaElement>('meta[name="guide"]')!.content;

/** Three sentences that say what a panel shows, and a link to a page of the guide. */
export function about(page: string, ...sentences: string[]): HTMLElement {
  const summary = element("summary", {}, "What am I looking at?");
  const link = element("a", { href: `${guide()}${page}` }, "More in the guide.");
  const opened: Record<string, string> = matchMedia(WIDE).matches ? { open: "" } : {};
  return element("details", { class: "about", ...opened }, summary, element("p", {}, `${sentences.join(" ")} `, link));
}

/** On wide pages the controls stand beside everything else; on a phone, between the view and the rest. */
export function layout(heading: HTMLElement, controls: HTMLElement, view: HTMLElement[], rest: HTMLElement[]): HTMLElement {
  const [above, below] = [element("div", { class: "view" }, ...view), element("div", { class: "rest" }, ...rest)];
  return element("section", { class: "panel" }, heading, above, controls, below);
}

export function download(name: string, text: string): void {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: "text/plain" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
