package server

import (
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/server/mux"

	"byre/apiserver/console"
	"byre/apiserver/handlers"
	"byre/apiserver/history"
	"byre/apiserver/process"
)

// newHistoryFeature makes the feature of the group history.byre.dev.
func newHistoryFeature() Feature {
	return Feature{New: func(b *Base) (Part, error) {
		changes := history.New(history.Config{Log: b.Changes, Feed: b.Storage.Feed})
		return Part{
			Groups:      []handlers.Group{history.NewGroup(changes)},
			Definitions: history.Definitions,
			Handling:    []process.Component{{Name: "watches of changes", Run: changes.Run}},
		}, nil
	}}
}

// newConsoleFeature makes the feature of the web pages.
func newConsoleFeature() Feature {
	var isOn bool
	return Feature{
		AddFlags: func(section func(string) *pflag.FlagSet) {
			section("features").BoolVar(&isOn, "console", isOn,
				"Serve web pages at /console/ that show what a user may list. \"byre console\" opens them.")
		},
		New: func(b *Base) (Part, error) {
			if !isOn {
				return Part{}, nil
			}
			generic := b.Options.Generic
			return Part{
				Handle: func(paths *mux.PathRecorderMux, _ http.Handler) {
					paths.UnlistedHandlePrefix(console.Path, http.HandlerFunc(console.Gate))
				},
				Wrap: func(next http.Handler) (http.Handler, error) {
					return console.New(console.Config{
						Server: next,
						HasName: func(host string) bool {
							return strings.EqualFold(host, generic.ExternalHost) || b.HasName(host)
						},
						Now: time.Now, Timeout: generic.RequestTimeout,
					})
				},
			}, nil
		},
	}
}
