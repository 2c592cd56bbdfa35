"""Pages that need no network, and frames in which tables and figures scroll that are wider than their page.

Pages of certificates are compared byte by byte: a change here is a new version of certificates.
"""

import html

# A shadow at an edge says that there is more beyond it: two covers move with the content, and hide the shadows at its
# two ends. Scroll bars that always show say so too. A tall table scrolls in its frame, so that they are never far away.
_CSS = """
.wide { overflow: auto; max-height: 90vh; margin: 1rem 0; background:
    linear-gradient(to right, #fff 40%, transparent) left / 3rem 100% no-repeat local,
    linear-gradient(to left, #fff 40%, transparent) right / 3rem 100% no-repeat local,
    linear-gradient(to right, #0007, transparent) left / .7rem 100% no-repeat scroll,
    linear-gradient(to left, #0007, transparent) right / .7rem 100% no-repeat scroll, #fff; }
.wide:focus-visible { outline: 2px solid #06c; }
.wide::-webkit-scrollbar { height: .7rem; width: .7rem; }
.wide::-webkit-scrollbar-track { background: #eee; }
.wide::-webkit-scrollbar-thumb { background: #888; border-radius: .35rem; }
@media print { .wide { overflow: visible; max-height: none; background: none; } }
"""


def page(title: str, body: str, width: str, style: str) -> str:
  """HTML of a page with this title, body, greatest width in CSS, and further CSS."""
  title = html.escape(title)
  return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_CSS}
body {{ font: 16px/1.5 system-ui, sans-serif; color: #111; background: #fff; max-width: {width}; margin: 2rem auto;
  padding: 0 1rem; }}
{style.rstrip()}
</style>
</head>
<body>
<h1>{title}</h1>
{body.rstrip()}
</body>
</html>
"""


def framed(content: str, label: str) -> str:
  """HTML of `content` in a frame that a keyboard can reach and scroll; `label` is what a screen reader calls it."""
  return f'<div class="wide" role="region" tabindex="0" aria-label="{html.escape(label)}">{content}</div>'
