package documents

import (
	"crypto/sha512"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/emicklei/go-restful/v3"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// A Root is a path prefix, usually that of a group version, with the operations below it.
// Each root has its own OpenAPI v3 document.
type Root struct {
	// Path has no slash at either end: "apis/apps/v1".
	Path string
	// Operations returns all operations below Path.
	Operations func() ([]restful.Route, error)
	// Routes lists the method and path of each operation. The hash of the document is
	// computed from them without a call of Operations.
	Routes []string
}

// fingerprint returns a hash that identifies the root's document without building it. The
// document depends only on what BuildIdentity names and on the routes that are enabled.
func (r Root) fingerprint(build string) string {
	return Hash(build + "\n" + r.Path + "\n" + strings.Join(r.Routes, "\n"))
}

// Hash returns a hash in the form of kube-apiserver's hashes of documents.
func Hash(s string) string { return fmt.Sprintf("%X", sha512.Sum512([]byte(s))) }

// BuildIdentity returns a string that is equal for two servers only if they serve the same
// documents of the same routes: it names the build, the emulated version and the feature
// gates. A build without a version, or of modified sources, cannot be told from others; the
// start time stands for it, because clients cache a document until its hash changes.
func BuildIdentity(started time.Time, emulated string) string {
	program := started.Format(time.RFC3339Nano)
	if build, ok := debug.ReadBuildInfo(); ok && build.Main.Version != "" && build.Main.Version != "(devel)" && !strings.Contains(build.Main.Version, "+dirty") {
		program = build.String()
	}
	return fmt.Sprintf("%s\n%s\n%v", program, emulated, utilfeature.DefaultFeatureGate)
}
