// Light or dark: as the system is, or as chosen; the choice is kept in this browser.
// @ts-check
import { store } from "./store.js";

const KEY = "penstock-theme";
/** @type {Record<string, string>} */
export const THEMES = { system: "System", light: "Light", dark: "Dark" };

const stored = () => {
  try {
    return localStorage.getItem(KEY) ?? "";
  } catch {
    return ""; // a browser may forbid storage
  }
};

export const theme = store(Object.hasOwn(THEMES, stored()) ? stored() : "system");
/** Counts the changes of colours, for what is drawn on a canvas. */
export const repaint = store(0);

/** @param {string} chosen */
function apply(chosen) {
  document.documentElement.dataset.theme = chosen;
  repaint.set(repaint.get() + 1);
}

/** @param {string} chosen */
export function choose(chosen) {
  try {
    localStorage.setItem(KEY, chosen);
  } catch {
    // The choice then holds until the page is closed.
  }
  theme.set(chosen);
  apply(chosen);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => repaint.set(repaint.get() + 1));
apply(theme.get());

/**
 * The present value of a colour variable, such as "--line".
 * @param {string} name
 */
export function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  probe.hidden = true;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
