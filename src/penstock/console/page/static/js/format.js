// Numbers and times as text. An unknown value is a dash, never 0.
// @ts-check
/** @import { Measured } from "../../types" */
const UNKNOWN = "–";

/**
 * @param {unknown} value
 * @returns {value is number}
 */
const known = (value) => typeof value === "number" && Number.isFinite(value);

/**
 * 1 234 as "1,234", 12 345 678 as "12.3 M".
 * @param {Measured} value
 */
export function count(value) {
  if (!known(value)) return UNKNOWN;
  if (Math.abs(value) < 1e6) return Math.round(value).toLocaleString("en");
  const [unit, name] = Math.abs(value) < 1e9 ? [1e6, "M"] : [1e9, "G"];
  return `${(value / unit).toLocaleString("en", { maximumFractionDigits: 1 })} ${name}`;
}

/**
 * Rows a second: three digits are enough.
 * @param {Measured} value
 */
export function rate(value) {
  if (!known(value)) return UNKNOWN;
  if (value > 0 && value < 10) return value.toLocaleString("en", { maximumSignificantDigits: 2 });
  return value < 10_000
    ? Math.round(value).toLocaleString("en")
    : `${(value / 1000).toLocaleString("en", { maximumSignificantDigits: 3 })} k`;
}

/**
 * A duration in seconds as "4 ms", "1.5 s", "3 min 20 s", "2 h 5 min" or "3 d 4 h".
 * @param {Measured} value
 * @returns {string}
 */
export function duration(value) {
  if (!known(value)) return UNKNOWN;
  if (value < 0) return `−${duration(-value)}`;
  if (value === 0) return "0 s";
  if (value < 0.9995) return `${Math.max(1, Math.round(value * 1000))} ms`;
  if (value < 9.95) return `${value.toFixed(1)} s`;
  const seconds = Math.round(value);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return two(seconds, 60, "min", 1, "s");
  if (seconds < 86_400) return two(seconds, 3600, "h", 60, "min");
  return two(seconds, 86_400, "d", 3600, "h");
}

/** @type {(seconds: number, large: number, largeName: string, small: number, smallName: string) => string} */
function two(seconds, large, largeName, small, smallName) {
  const rest = Math.floor((seconds % large) / small);
  return `${Math.floor(seconds / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

/** @param {Measured} value */
export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let [size, at] = [value, 0];
  while (size >= 1000 && at < units.length - 1) [size, at] = [size / 1000, at + 1];
  return `${size < 10 && at ? size.toFixed(1) : Math.round(size)} ${units[at]}`;
}

/** @param {number} value */
const two_digits = (value) => String(value).padStart(2, "0");

/**
 * The time of day in the browser's zone, with the date if it is not today.
 * @param {string | number | null | undefined} text
 */
export function time(text, { milliseconds = false } = {}) {
  const date = new Date(text || NaN);
  if (Number.isNaN(date.getTime())) return UNKNOWN;
  const clock = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two_digits).join(":");
  const rest = milliseconds ? `.${String(date.getMilliseconds()).padStart(3, "0")}` : "";
  const day = `${date.getFullYear()}-${two_digits(date.getMonth() + 1)}-${two_digits(date.getDate())} `;
  return `${date.toDateString() === new Date().toDateString() ? "" : day}${clock}${rest}`;
}

/** The zone of all times of the page, such as "UTC+1" or "UTC". */
export function zone(date = new Date()) {
  const minutes = -date.getTimezoneOffset();
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return `UTC${minutes ? `${minutes < 0 ? "−" : "+"}${hours}${rest ? `:${two_digits(rest)}` : ""}` : ""}`;
}

/** @type {[number, string][]} */
const UNITS = [
  [86_400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

/**
 * How long ago a time was, by the server's clock, in its largest unit: a live number need not be finer.
 * @param {string | null | undefined} text
 * @param {string | undefined} now
 */
export function ago(text, now) {
  const passed = (new Date(now ?? Date.now()).getTime() - new Date(text || NaN).getTime()) / 1000;
  if (Number.isNaN(passed)) return UNKNOWN;
  if (passed < 1) return "now";
  const [unit, name] = UNITS.find(([size]) => passed >= size) ?? [1, "s"];
  return `${Math.floor(passed / unit)} ${name} ago`;
}

/**
 * The line of a trace that says why: of Java the last cause or the first line, of Python the last line that is not indented.
 * @param {string | undefined} trace
 */
export function cause(trace) {
  const lines = (trace ?? "").split("\n").filter((line) => line && !/^\s/.test(line));
  if (lines[0]?.startsWith("Traceback")) return lines.at(-1);
  return lines.findLast((line) => line.startsWith("Caused by: "))?.slice("Caused by: ".length) ?? lines[0] ?? "";
}

/**
 * "3 queries", "1 query".
 * @param {Measured} number
 * @param {string} one
 */
export const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

/**
 * The longest form of a text that fits: its middle is left out, since both ends tell names apart. `fits(text)` says so.
 * @param {string} text
 * @param {(text: string) => boolean} fits
 */
export function shortened(text, fits) {
  if (fits(text)) return text;
  let [low, high] = [0, text.length - 1]; // characters kept
  while (low < high) {
    const kept = Math.ceil((low + high) / 2);
    if (fits(cut(text, kept))) low = kept;
    else high = kept - 1;
  }
  return cut(text, low);
}

/** @type {(text: string, kept: number) => string} */
function cut(text, kept) {
  const tail = Math.floor(kept / 2);
  return `${text.slice(0, kept - tail)}…${tail ? text.slice(-tail) : ""}`;
}
