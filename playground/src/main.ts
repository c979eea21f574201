import "./style.css";
import { element } from "./controls";
import { paperPanel } from "./paper/panel";
import { readAddress } from "./settings";

/** A panel fills its place and returns a function that stops it. */
export type Panel = (place: HTMLElement, given: URLSearchParams) => () => void;

/** Only the first panel is part of the page. The others are loaded when they are opened. */
const PANELS: Record<string, { title: string; load: () => Promise<Panel> }> = {
  paper: { title: "The paper's example", load: async () => paperPanel },
  motor: { title: "A PID loop", load: async () => (await import("./motor/panel")).motorPanel },
  arm: { title: "An arm", load: async () => (await import("./robots/arm")).armPanel },
  quadrotor: { title: "A quadrotor", load: async () => (await import("./robots/quadrotor")).quadrotorPanel },
  file: { title: "A robot from its file", load: async () => (await import("./robots/file")).filePanel },
};

const place = document.querySelector<HTMLElement>("#panel")!;
const navigation = document.querySelector("nav")!;
const links = Object.entries(PANELS).map(([name, { title }]) => element("a", { href: `#${name}` }, title));
navigation.append(...links);

let stop = () => {};
let shown = 0;

async function show(): Promise<void> {
  const { panel, given } = readAddress(location.hash);
  const name = Object.hasOwn(PANELS, panel) ? panel : "paper";
  const turn = ++shown;
  stop();
  stop = () => {};
  links.forEach((link) => {
    if (link.getAttribute("href") === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  document.title = `${PANELS[name]!.title} · selftune playground`;
  place.replaceChildren(element("p", { class: "loading" }, "Loading …"));
  try {
    const fill = await PANELS[name]!.load();
    if (turn !== shown) return; // the reader has opened another panel
    place.replaceChildren();
    stop = fill(place, given);
  } catch (error) {
    place.replaceChildren(element("p", { class: "loading" }, `This panel could not be loaded: ${String(error)}`));
  }
}

addEventListener("hashchange", () => void show());
void show();
