// Light or dark, as the system has it until somebody chooses. Runs before the page is painted: it never flashes.
"use strict";
(() => {
  const KEY = "llm_guard.theme";
  const system = matchMedia("(prefers-color-scheme: dark)");

  const kept = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // a browser that keeps nothing
    }
  };
  const chosen = () => document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
  const changed = () => document.dispatchEvent(new Event("themechange"));

  if (["light", "dark"].includes(kept())) document.documentElement.dataset.theme = kept();
  system.addEventListener("change", changed);

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const name = () => {
      button.textContent = chosen() === "dark" ? "Light" : "Dark";
      button.setAttribute("aria-label", `${button.textContent} theme`);
    };
    name();
    document.addEventListener("themechange", name);
    button.addEventListener("click", () => {
      document.documentElement.dataset.theme = chosen() === "dark" ? "light" : "dark";
      try {
        localStorage.setItem(KEY, chosen());
      } catch {
        // it holds until the page is left
      }
      changed();
    });
  });
})();
