// Package version says which version of Verbena a program was built from.
package version

import (
	"cmp"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
)

// module is the path of the module whose version is reported.
const module = "github.com/verbena-rdma/verbena"

// commit is the commit of a build without git, such as one from an archive or with -buildvcs=false. make
// sets it, as packagers may: go build -ldflags "-X github.com/verbena-rdma/verbena/internal/version.commit=…".
var commit string

// unknown is the version of a build without one, such as a build of changed files.
const unknown = "devel"

// revisionLength is how many digits of a revision are shown, as in Go's pseudo-versions.
const revisionLength = 12

// String describes the running program in one line, without a newline: the version of the
// module; the revision of its repository and whether files were changed, as the go command or the linker
// was told, or from the pseudo-version with which go install module@version builds what has no tag; and the
// version of Go.
//
//	v1.2.0 (revision 0123456789ab, modified; go1.26.0 linux/amd64)
//	devel (go1.26.0 linux/amd64)
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok { // built without module support
		info = &debug.BuildInfo{GoVersion: runtime.Version()}
	}
	return describe(info, runtime.GOOS+"/"+runtime.GOARCH)
}

func describe(info *debug.BuildInfo, platform string) string {
	version, details := versionOf(info), revisionOf(info)
	if details == nil {
		if revision := cmp.Or(commit, pseudoRevision(version)); revision != "" {
			details = []string{"revision " + shorten(revision)}
		}
	}
	details = append(details, strings.TrimSpace(info.GoVersion+" "+platform))
	return fmt.Sprintf("%s (%s)", version, strings.Join(details, "; "))
}

// versionOf returns the version of the module, which is the program's own or a dependency.
func versionOf(info *debug.BuildInfo) string {
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path != module {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Version != "" && m.Version != "(devel)" {
			return m.Version
		}
	}
	return unknown
}

// revisionOf returns the revision of the repository, if the program belongs to this module.
func revisionOf(info *debug.BuildInfo) []string {
	if info.Main.Path != module {
		return nil
	}
	var revision, modified string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	if revision == "" {
		return nil
	}
	return []string{"revision " + shorten(revision) + modified}
}

func shorten(revision string) string { return revision[:min(len(revision), revisionLength)] }

// pseudo matches the end of a pseudo-version: the time and the revision (go.dev/ref/mod#pseudo-versions).
var pseudo = regexp.MustCompile(`[-.]\d{14}-([0-9a-f]{12})(?:\+[0-9A-Za-z.]+)?$`)

func pseudoRevision(version string) string {
	if m := pseudo.FindStringSubmatch(version); m != nil {
		return m[1]
	}
	return ""
}
