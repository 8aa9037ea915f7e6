package openapi

import (
	"crypto/sha512"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// A Root is a path below which operations are served, and which has a document
// of its own in version 3.
type Root struct {
	// Path has no slash at either end: "apis/apps/v1".
	Path string
	// Operations describes all that is served.
	Operations func() ([]Operation, error)
	// Routes lists the operations briefly, for telling whether anything changed
	// without describing it.
	Routes []string
}

// fingerprint identifies a root's document without building it: what it says is
// decided by the program and by what this server has switched on.
func (r Root) fingerprint(build string) string {
	return Hash(build + "\n" + r.Path + "\n" + strings.Join(r.Routes, "\n"))
}

// Hash is a hash of the form that kube-apiserver's hashes of documents have.
func Hash(s string) string { return fmt.Sprintf("%X", sha512.Sum512([]byte(s))) }

// BuildIdentity names the program as far as documents depend on it. A build that
// can't be told from similar builds (no version, or changed sources) is another
// one each time it starts: clients keep a document as long as its hash stays.
func BuildIdentity(started time.Time) string {
	build, ok := debug.ReadBuildInfo()
	if !ok || build.Main.Version == "" || build.Main.Version == "(devel)" || strings.Contains(build.Main.Version, "+dirty") {
		return started.Format(time.RFC3339Nano)
	}
	return build.String()
}
