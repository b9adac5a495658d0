// JSON whose numbers keep the digits that they are written with, where JavaScript's own numbers have fewer.
// @ts-check

/** @param {string} text */
const digits = (text) =>
  text
    .replace(/e.*/i, "")
    .replaceAll(/[-.]/g, "")
    .replaceAll(/^0+|0+$/g, "");

/**
 * Browsers before 2025 do not say how a number was written: then all of them are JavaScript's.
 * @type {(value: number, source: string | undefined) => boolean}
 */
const rounded = (value, source) => source !== undefined && digits(String(value)) !== digits(source);

/**
 * The value of a text; a number that would be rounded is the string of its digits. Throws SyntaxError.
 * @param {string} text
 * @returns {unknown}
 */
export const parsed = (text) =>
  JSON.parse(text, (name, value, context) =>
    typeof value === "number" && rounded(value, context?.source) ? context?.source : value,
  );

/**
 * The JSON of a text on many lines, its numbers as they are written; throws SyntaxError.
 * @param {string} text
 */
export function indented(text) {
  const { rawJSON } = JSON;
  if (!rawJSON) return /[\d.]{16}|\d[eE]/.test(text) ? text : JSON.stringify(JSON.parse(text), null, 2);
  const written = JSON.parse(text, (name, value, context) =>
    typeof value === "number" ? rawJSON(context?.source ?? String(value)) : value,
  );
  return JSON.stringify(written, null, 2);
}
