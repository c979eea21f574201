import "./style.css";
import { element } from "./controls";
import { motorPanel } from "./motor/panel";
import { paperPanel } from "./paper/panel";
import { readAddress } from "./settings";

/** A panel fills its place and returns a function that stops it. */
export type Panel = (place: HTMLElement, given: URLSearchParams) => () => void;

const PANELS: Record<string, { title: string; show: Panel }> = {
  paper: { title: "The paper's example", show: paperPanel },
  motor: { title: "A PID loop", show: motorPanel },
};

const place = document.querySelector<HTMLElement>("#panel")!;
const navigation = document.querySelector("nav")!;
const links = Object.entries(PANELS).map(([name, { title }]) => element("a", { href: `#${name}` }, title));
navigation.append(...links);

let stop = () => {};

function show(): void {
  const { panel, given } = readAddress(location.hash);
  const name = panel in PANELS ? panel : "paper";
  stop();
  links.forEach((link) => {
    if (link.getAttribute("href") === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  document.title = `${PANELS[name]!.title} · selftune playground`;
  place.replaceChildren();
  stop = PANELS[name]!.show(place, given);
}

addEventListener("hashchange", show);
show();
