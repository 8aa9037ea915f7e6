package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	logsjson "k8s.io/component-base/logs/json"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// logFormats are the two formats: the logger that writes to a stream, and how it writes a number.
var logFormats = map[string]struct {
	set        func(io.Writer)
	suppressed string
}{
	"text": {func(out io.Writer) {
		logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(out)))
		buffer := logger.GetSink().(textlogger.KlogBufferWriter).WriteKlogBuffer
		klog.SetLoggerWithOptions(logger, klog.ContextualLogger(true), klog.WriteKlogBuffer(buffer))
	}, "suppressed=%d"},
	"json": {func(out io.Writer) {
		logger, _ := logsjson.NewJSONLogger(0, logsjson.AddNopSync(out), nil, nil)
		klog.SetLoggerWithOptions(logger, klog.ContextualLogger(true))
	}, `"suppressed":%d`},
}

// TestLog_LimitsWhatOnePlaceRepeats: of warnings and errors, each place in the source has its
// own limit, in both formats and by every function that logs; in text, information has none.
func TestLog_LimitsWhatOnePlaceRepeats(t *testing.T) {
	for name, format := range logFormats {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				defer klog.CaptureState().Restore()
				out := new(bytes.Buffer)
				format.set(newLogStream(out))
				slogger := slog.New(logr.ToSlogHandler(klog.Background()))
				err := errors.New("refused")
				for message, log := range map[string]func(i int){
					"warning":    func(i int) { klog.Warningf("warning %d", i) },
					"plain":      func(i int) { klog.Errorf("plain %d", i) },
					"structured": func(i int) { klog.ErrorS(err, "structured", "i", i) },
					"contextual": func(i int) { klog.Background().WithName("n").WithValues("a", 1).Error(err, "contextual", "i", i) },
					"slog":       func(i int) { slogger.Error("slog", "err", err, "i", i) },
					"handled":    func(i int) { utilruntime.HandleErrorWithContext(t.Context(), err, "handled", "i", i) },
				} {
					out.Reset()
					for i := range 1000 {
						log(i)
					}
					// HandleError waits after its first message, so that one more is admitted.
					written := strings.Count(out.String(), "\n")
					if written < repeatBurst || written > repeatBurst+1 {
						t.Errorf("%s: %d lines of 1000", message, written)
					}
					if strings.Contains(out.String(), "logging.go") || !strings.Contains(out.String(), "logging_test.go") {
						t.Errorf("%s does not come from here: %s", message, out)
					}
					out.Reset()
					time.Sleep(repeatInterval)
					log(1000)
					if want := fmt.Sprintf(format.suppressed, 1000-written); !strings.Contains(out.String(), want) ||
						strings.Count(out.String(), "\n") != 1 {
						t.Errorf("%s: after %v: %q, not %s", message, repeatInterval, out, want)
					}
				}
				out.Reset()
				klog.ErrorS(err, "another place")
				for i := range 100 {
					klog.InfoS("information", "i", i)
				}
				if n := strings.Count(out.String(), "\n"); name == "text" && n != 101 || n < 21 {
					t.Errorf("%d lines from other places", n)
				}
			})
		})
	}
}

// What a package of Kubernetes logs as an error is left out where nobody has to act: the database is away, which the
// store logs, or a controller begins again. Its other errors stay.
func TestLog_LeavesOutConsequences(t *testing.T) {
	reflector := cache.NewReflector(nil, nil, cache.NewStore(cache.MetaNamespaceKeyFunc), 0)
	for name, format := range logFormats {
		// The handlers of errors wait between two of them.
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				defer klog.CaptureState().Restore()
				out := new(bytes.Buffer)
				format.set(newLogStream(out))
				for message, want := range map[string]bool{
					"the database is not available: the disk is full": false,
					`sync "default/web-7b" failed with read version: 265 is not as new as written version: 276 for group resource replicasets.apps`:           false,
					`sync "default/web-7b" failed with replicasets.apps "web-7b" not found`:                                                                   false,
					`Operation cannot be fulfilled on nodes "n": the object has been modified; please apply your changes to the latest version and try again`: false,
					`sync "default/web-7b" failed with replicasets.apps "web-7b" is forbidden`:                                                                true,
					"Timeout: the database did not confirm the write: it took effect once or not at all":                                                      false,
					"apiserver was unable to write a application/json response: http: Handler timeout":                                                        false,
					"context deadline exceeded": true,
				} {
					out.Reset()
					cache.DefaultWatchErrorHandler(t.Context(), reflector, errors.New(message))
					if got := out.Len() > 0; got != want {
						t.Errorf("%s: logged %t: %s", message, got, out)
					}
				}
				for result, want := range map[any]bool{nil: false, "a panic": true} {
					out.Reset()
					utilruntime.HandleErrorWithContext(t.Context(), nil, "Post-timeout activity", "path", "/api", "result", result)
					if got := out.Len() > 0; got != want {
						t.Errorf("after a timeout %v: logged %t: %s", result, got, out)
					}
				}
				out.Reset()
				klog.ErrorS(context.DeadlineExceeded, "Error retrieving lease lock", "lock", "kube-system/byre-controllers")
				klog.ErrorS(context.DeadlineExceeded, "Unexpected error when reading response body")
				if out.Len() > 0 {
					t.Errorf("a deadline of a controller: %s", out)
				}
			})
		})
	}
}
