#!/usr/bin/env bash
# Writes the bill of materials of an image that image.sh has built, in the format SPDX 2.3 (JSON),
# with Syft: Debian packages, Rust crates, and Python packages if there are any. Prints how many it
# lists, and fails if packages or crates are missing: programs list their crates if cargo-auditable
# has built them.
#
# usage: sbom.sh IMAGE FOLDER
#
# Reads FOLDER/IMAGE.tar, and writes FOLDER/IMAGE.spdx.json.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
image=$1 folder=$2
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")
# The version of go.mod.
syft=$(cd "$root/scripts/syft" &&
    ../go_install.sh syft 1.57.1 github.com/anchore/syft/cmd/syft)/syft
SYFT_CHECK_FOR_APP_UPDATE=false "$syft" scan --quiet "oci-archive:$folder/$image.tar" \
    --source-name "rljob-$image" --source-version "$version" \
    --output "spdx-json=$folder/$image.spdx.json"
python3 - "$image" "$folder/$image.spdx.json" <<'PYTHON'
import collections
import json
import sys

image, path = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    document = json.load(file)
kinds = collections.Counter(
    reference["referenceLocator"].split("/")[0].removeprefix("pkg:")
    for package in document["packages"]
    for reference in package.get("externalRefs", [])
    if reference["referenceType"] == "purl"
)
print(f"{image} {document['spdxVersion']}: {kinds['deb']} Debian packages, {kinds['cargo']} crates")
if not kinds["deb"] or not kinds["cargo"]:
    sys.exit(f"{path} lists {dict(kinds)}: build the programs with cargo auditable")
PYTHON
