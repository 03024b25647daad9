#!/usr/bin/env python3
"""Drives the page of `shamrock serve` in a headless Chromium and takes screenshots to look at.

    python3 -m venv browser && browser/bin/pip install playwright     # and a Chromium of the system's
    browser/bin/python tools/page-check.py target/release/shamrock SCREENSHOTS [/usr/bin/chromium]

Starts a server over clover-nano on a free port, has it answer at the widths of phones and of a screen, light and
dark, and stops it. No page may scroll sideways, complain, or stop at what it finds in its storage.
"""

import json
import pathlib
import sys

from playwright.sync_api import sync_playwright

from served import check, start

WIDTHS = [320, 390, 1280]
ANSWER = """# A heading
Some *slanted*, **bold** and `code`, a [link](https://example.org/a_(b)), https://example.org/b, and
[none](javascript:alert(1)).

1. first
   - nested
     - deeper
2. second

> A quote
> > in a quote

| name | a rather long column | number |
|------|:--------------------:|-------:|
| one  | with words in it that take some room | 1 |
| two  | `a\\|b` | 22 |

```python
print("a line of code that is much wider than the screen of any telephone, so that it has to scroll by itself")
```
"""
HISTORY = [{"role": "user", "content": "Show me what you can write."}, {"role": "assistant", "content": ANSWER}]
BROKEN = ['{', 'null', '7', '"x"', '{"a": 1}', '[null]', '[{"role": "user"}]', '[{"role": 3, "content": {}}]']


def until(page, expression):
    """Waits as `wait_for_function` does, which evaluates in the page, where the server's policy forbids it."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    sys.exit(f"30 seconds passed without {expression}")


def fits(page, name):
    widths = page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]")
    check(f"{name}: does not scroll sideways", max(widths[:2]) <= widths[2], widths)


def looks(browser, url, shots):
    for width in WIDTHS:
        for scheme in ["light", "dark"]:
            name = f"{width}-{scheme}"
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            complaints = []
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(url)
            page.wait_for_selector(".dot.ok")
            fits(page, f"{name} empty")
            page.screenshot(path=shots / f"{name}-empty.png")
            page.evaluate("history => localStorage.setItem('shamrock.history', history)", json.dumps(HISTORY))
            page.reload()
            page.wait_for_selector(".message table")
            fits(page, f"{name} markdown")
            page.screenshot(path=shots / f"{name}-markdown.png")
            markdown(page, name)
            page.click("#new")
            page.fill("#input", "Write a short story with the words fox, lantern and river.")
            page.keyboard.press("Enter")
            page.wait_for_selector(".cell.known")
            page.screenshot(path=shots / f"{name}-running.png")
            page.wait_for_selector(".message footer")
            until(page, "document.getElementById('shown').value.split(' of ').every((n, _, all) => n === all[0])")
            figures(page, name)
            fits(page, f"{name} answered")
            page.screenshot(path=shots / f"{name}-answered.png")
            page.click("#open-settings")
            page.select_option("[name=mode]", "draft")
            check(f"{name}: a draft has no threshold", page.is_disabled("[name=threshold]"))
            fits(page, f"{name} settings")
            page.screenshot(path=shots / f"{name}-settings.png")
            page.keyboard.press("Escape")
            chats(page, name, shots)
            check(f"{name}: no complaints", not complaints, complaints)
            page.context.close()


def markdown(page, name):
    check(f"{name}: nested lists", page.locator(".message ol > li > ul > li > ul > li").inner_text() == "deeper")
    check(f"{name}: nested quotes", page.locator(".message blockquote blockquote").inner_text() == "in a quote")
    cells = page.locator(".message td").all_inner_texts()
    check(f"{name}: a table", cells[3:] == ["two", "a|b", "22"], cells)
    links = page.eval_on_selector_all(".message a", "all => all.map((a) => [a.href, a.rel])")
    wanted = ["https://example.org/a_(b)", "https://example.org/b"]
    check(f"{name}: links", [link[0] for link in links] == wanted and all("noopener" in link[1] for link in links), links)


def figures(page, name):
    note = page.inner_text(".message footer span")
    check(f"{name}: one count of tokens", note.startswith(page.inner_text("#tokens") + " tokens in "), note)
    check(f"{name}: one count of passes", f" in {page.inner_text('#passes')} passes" in note, note)
    check(f"{name}: one time", f", {page.inner_text('#seconds')} s" in note, note)


def chats(page, name, shots):
    """Another conversation is begun while the answer to this one is being made; then this one comes back."""
    page.click("#new")
    check(f"{name}: a new chat is empty", page.locator(".message").count() == 0)
    page.fill("#input", "Write a short story with the words bee, cake and garden.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".message.assistant")
    page.click("#new")
    page.wait_for_timeout(500)
    check(f"{name}: what was left does not come along", page.locator(".message").count() == 0)
    page.reload()
    titles = page.locator("#earlier option").all_inner_texts()
    check(f"{name}: earlier chats", titles[1:4] == ["Write a short story with the words bee, cake and garden.",
          "Write a short story with the words fox, lantern and river.", "Show me what you can write."], titles)
    fits(page, f"{name} earlier chats")
    page.screenshot(path=shots / f"{name}-chats.png")
    page.select_option("#earlier", "1")
    check(f"{name}: one of them comes back", "fox" in page.inner_text(".message.user"))
    check(f"{name}: with its answer", page.locator(".message footer").count() == 1)
    page.select_option("#earlier", "forget")
    check(f"{name}: they can be forgotten", page.locator("#earlier").is_hidden())


def storage(browser, url):
    for broken in BROKEN:
        page = browser.new_page()
        page.goto(url)
        keys = ["history", "chats", "settings", "theme"]
        page.evaluate("([keys, text]) => keys.forEach((key) => localStorage.setItem(`shamrock.${key}`, text))", [keys, broken])
        page.reload()
        page.fill("#input", "What is 3 + 4?")
        page.keyboard.press("Enter")
        page.wait_for_selector(".message footer")
        check(f"storage with {broken}", "7" in page.inner_text(".message.assistant"), page.inner_text("#messages"))
        page.context.close()


def main():
    program, shots = sys.argv[1], pathlib.Path(sys.argv[2])
    shots.mkdir(exist_ok=True)
    server, url = start(program)
    try:
        with sync_playwright() as playwright:
            path = sys.argv[3] if len(sys.argv) > 3 else "/usr/bin/chromium"
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            looks(browser, url, shots)
            storage(browser, url)
            browser.close()
    finally:
        server.terminate()


if __name__ == "__main__":
    main()
