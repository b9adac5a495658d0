// A value that components follow: they are drawn again when it changes.
// @ts-check
/** @import { Store } from "../../types" */
import { useEffect, useState } from "preact/hooks";

/**
 * @template T
 * @param {T} first
 * @returns {Store<T>}
 */
export function store(first) {
  /** @type {Set<(value: T) => void>} */
  const followers = new Set();
  let value = first;
  return {
    get: () => value,
    set(next) {
      value = next;
      for (const follower of [...followers]) follower(next);
    },
    follow(follower) {
      followers.add(follower);
      return () => followers.delete(follower);
    },
  };
}

/**
 * @template T
 * @param {Store<T>} followed
 */
export function useStore(followed) {
  const [value, setValue] = useState(followed.get);
  useEffect(() => {
    setValue(followed.get);
    return followed.follow((next) => setValue(() => next));
  }, [followed]);
  return value;
}
