package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// nfpm makes packages. It is no dependency of the module: go run downloads it. Later versions need modules that some
// proxies do not serve.
const nfpm = "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2"

// maintainer is who answers for the packages.
const maintainer = "Agora authors <authors@agora-relay.example>"

// pack makes a package with nfpm: format is deb or rpm. It first makes a folder with the files that
// ci/packaging/nfpm.yaml names.
func (r *release) pack(format, arch, program, common string) error {
	folder := filepath.Join(r.work, format+"-"+arch)
	files := map[string]string{ // where to → where from
		"agora": program, "agora.toml": filepath.Join(common, "agora.toml"),
		"doc/README.md": filepath.Join(common, "README.md"),
	}
	if format == "deb" {
		files["doc/third-party-licenses.gz"] = filepath.Join(common, "third-party-licenses")
		files["doc/copyright"] = filepath.Join(common, "ci", "packaging", "copyright")
		files["doc/changelog.gz"] = filepath.Join(common, "CHANGELOG.md")
	} else {
		files["licenses/third-party-licenses.gz"] = filepath.Join(common, "third-party-licenses")
		files["licenses/LICENSE"] = filepath.Join(common, "LICENSE")
		files["doc/CHANGELOG.md"] = filepath.Join(common, "CHANGELOG.md")
	}
	for _, tree := range []struct{ to, pattern, ending string }{
		{"man", "man/*", ".gz"}, {"completions", "completions/*", ""}, {"docs", "docs/*", ""},
		{"ci/packaging", "ci/packaging/*.*", ""}, {"ci/packaging/" + format, "ci/packaging/" + format + "/*", ""},
	} {
		names, err := filepath.Glob(filepath.Join(common, tree.pattern))
		if err != nil {
			return err
		}
		for _, name := range names {
			files[tree.to+"/"+filepath.Base(name)+tree.ending] = name
		}
	}
	for to, from := range files {
		put := copyFile
		if strings.HasSuffix(to, ".gz") {
			put = compressFile
		}
		if err := put(filepath.Join(folder, to), from); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "changelog.yaml"), r.changelog(), 0o644); err != nil {
		return err
	}
	cmd := exec.Command("go", "run", nfpm, "package", "--config", "ci/packaging/nfpm.yaml", "--packager", format,
		"--target", r.out)
	cmd.Dir = folder
	// nfpm is built without the flags of this build. With them, the Go toolchain would keep another compiled nfpm for
	// each set of flags.
	cmd.Env = append(os.Environ(), "GOFLAGS=", "VERSION="+r.version, "ARCH="+arch, "MAINTAINER="+maintainer,
		fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.date.Unix()))
	return run(cmd)
}

// changelog returns the entry of this version in the form that nfpm takes.
func (r *release) changelog() []byte {
	return fmt.Appendf(nil, `- semver: %s
  date: %s
  packager: %s
  deb: {urgency: medium, distributions: [stable]}
  changes:
    - note: Version %s. CHANGELOG.md has what is new.
`, r.version, r.date.Format(time.RFC3339), maintainer, r.version)
}
