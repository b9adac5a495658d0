// Names that are cut to the width of a box, measured in the page's own font.
import { shortened } from "./format.js";

const FONTS = { name: "600 13px", numbers: "400 12px" };
const MOST = 5_000; // remembered texts
const pen = document.createElement("canvas").getContext("2d");
const known = new Map();

/** The text as it fits in `width` pixels; `kind` names its font: "name" or "numbers". */
export function fitting(text, kind, width) {
  const key = `${kind} ${width} ${text}`;
  if (!known.has(key)) {
    if (known.size > MOST) known.clear();
    pen.font = `${FONTS[kind]} ${getComputedStyle(document.body).fontFamily}`;
    known.set(
      key,
      shortened(text, (part) => pen.measureText(part).width <= width),
    );
  }
  return known.get(key);
}
