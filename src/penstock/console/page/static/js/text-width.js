// Names that are cut to the width of a box, measured in the page's own font.
// @ts-check
import { shortened } from "./format.js";

const FONTS = { name: "600 13px", numbers: "400 12px" };
const MOST = 5_000; // remembered texts
const pen = document.createElement("canvas").getContext("2d");
/** @type {Map<string, string>} */
const known = new Map();

/**
 * The text as it fits in `width` pixels; `kind` names its font.
 * @param {string} text
 * @param {keyof typeof FONTS} kind
 * @param {number} width
 */
export function fitting(text, kind, width) {
  const key = `${kind} ${width} ${text}`;
  const before = known.get(key);
  if (before !== undefined || !pen) return before ?? text;
  if (known.size > MOST) known.clear();
  pen.font = `${FONTS[kind]} ${getComputedStyle(document.body).fontFamily}`;
  const fitted = shortened(text, (part) => pen.measureText(part).width <= width);
  known.set(key, fitted);
  return fitted;
}
