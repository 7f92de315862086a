# Sourced by the scripts that need a Python of the machine: which one, and whether it can make an environment.

find_python() {
    local name
    for name in "${PYTHON:-}" python3.11 python3 python3.12 python3.13; do
        if [[ -n $name ]] && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    echo "no Python 3.11 or newer found; set PYTHON=/path/to/python3.11" >&2
    return 1
}

# Debian keeps venv and ensurepip in a package of their own.
need_venv_module() {
    "$1" -c 'import venv, ensurepip' 2>/dev/null && return
    local version package
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    package=python$version-venv
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        echo "installing $package"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" </dev/null >/dev/null
    else
        echo "$1 has no venv module; run: sudo apt-get install $package" >&2
        return 1
    fi
}
