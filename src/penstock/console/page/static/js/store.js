// A value that components follow: they are drawn again when it changes.
import { useEffect, useState } from "preact/hooks";

export function store(first) {
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

export function useStore(followed) {
  const [value, setValue] = useState(followed.get);
  useEffect(() => {
    setValue(followed.get);
    return followed.follow((next) => setValue(() => next));
  }, [followed]);
  return value;
}
