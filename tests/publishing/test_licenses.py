"""Licenses as the hub and SPDX name them."""

from __future__ import annotations

from fineshards.publishing import licenses


def test_every_license_of_the_hub_is_found_by_its_spdx_identifier() -> None:
    known = {name: name for name in licenses._HUB} | licenses._HUB_FAMILIES
    for spdx, name in known.items():
        assert licenses.hub_fields(licenses.license_url(spdx)) == {"license": name}


def test_or_later_is_written_as_spdx_does_now() -> None:
    assert licenses.license_url("gpl-2.0+") == "https://spdx.org/licenses/GPL-2.0-or-later"


def test_other_licenses_are_named_with_a_link() -> None:
    url = licenses.license_url("CC-BY-ND-3.0")
    assert licenses.hub_fields(url) == {
        "license": "other",
        "license_name": "CC-BY-ND-3.0",
        "license_link": "https://spdx.org/licenses/CC-BY-ND-3.0",
    }
