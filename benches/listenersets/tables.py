"""Owns how results are shown: tables in Markdown, a row for each number of sets. Plain data, no I/O."""


def costs(rows: list[dict]) -> str:
    has_controller = "controller" in rows[0]
    header = ["sets", "table after", "RSS", "after changes", "CPU per request to one team", "to all teams", "handshakes/s"]
    header += ["controller ready after", "its RSS", "after changes"] * has_controller
    body = []
    for row in rows:
        cells = [f"{row['sets']:,}", f"{row['ready_s']} s", f"{row['rss_mb']} MB", f"{row['rss_after_mb']} MB"]
        cells += [f"{row[name]:.2f}" if name in row else "–" for name in ("cpu_ratio", "all_cpu_ratio", "handshakes_ratio")]
        if has_controller:
            controller = row["controller"]
            cells += [f"{controller['ready_s']} s", f"{controller['rss_mb']} MB", f"{controller['rss_after_mb']} MB"]
        body.append(cells)
    return markdown(header, body)


def changes(rows: list[dict], kinds: tuple[str, ...]) -> str:
    kinds = [kind for kind in kinds if kind in rows[0]]
    body = [[f"{row['sets']:,}", *("{p50_ms} / {p99_ms} / {cpu_ms}".format(**row[kind]) for kind in kinds)] for row in rows]
    return markdown(["sets", *(f"{kind}: p50 / p99 / CPU, ms" for kind in kinds)], body)


def statuses(rows: list[dict], kinds: tuple[str, ...]) -> str:
    """Empty where no controller writes any."""
    if "statuses" not in rows[0]:
        return ""
    kinds = [kind for kind in kinds if kind in rows[0]["statuses"]]
    body = [[f"{row['sets']:,}", *(_written(row["statuses"][kind]) for kind in kinds)] for row in rows]
    return markdown(["sets", *(f"statuses for a change of one {kind}" for kind in kinds)], body)


def renewals(rows: list[dict]) -> str:
    """Empty if none were made."""
    header = ["sets", "renewals", "per second", "new connections", "failed", "p99 of a handshake", "kept connections", "cut", "last one served after"]
    body = []
    for row in rows:
        if "renewals" in row:
            found = row["renewals"]
            cells = [f"{row['sets']:,}", f"{found['renewals']:,}", f"{found['renewals_per_second']}", f"{found['handshakes'] + found['failed']:,}", f"{found['failed']}"]
            body.append([*cells, f"{found['handshake_p99_ms']} ms", found["kept"], f"{found['cut']}", f"{found['caught_up_s']} s"])
    return markdown(header, body) if body else ""


def markdown(header: list[str], body: list[list[str]]) -> str:
    rule = ["---:"] * len(header)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *body])


def _written(found: dict) -> str:
    """Such as `1 httproutes`; the number of those of other teams only if there are some."""
    parts = [f"{count:g} {resource.partition('/')[0]}" for resource, count in found["per_change"].items()]
    others = f" ({found['of_others']} of others)" if found["of_others"] else ""
    return (", ".join(parts) or "none") + others
