package options

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	logsjson "k8s.io/component-base/logs/json"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// textStream is a zapcore.WriteSyncer.
type textStream struct{ bytes.Buffer }

func (*textStream) Sync() error { return nil }

// logFormats are the two formats, with how each writes a number.
var logFormats = map[string]struct {
	sink       func(*textStream) logr.LogSink
	suppressed string
}{
	"text": {func(out *textStream) logr.LogSink {
		return textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(out))).GetSink()
	}, "suppressed=%d"},
	"json": {func(out *textStream) logr.LogSink {
		logger, _ := logsjson.NewJSONLogger(0, out, nil, nil)
		return logger.GetSink()
	}, `"suppressed":%d`},
}

// TestLog_LimitsWhatOnePlaceRepeats: of warnings and errors, each place in the source has its
// own limit, in both formats and by every function that logs; information has none.
func TestLog_LimitsWhatOnePlaceRepeats(t *testing.T) {
	for name, format := range logFormats {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				defer klog.CaptureState().Restore()
				out := new(textStream)
				setFilteredLog(format.sink(out).(logr.CallDepthLogSink))
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
					if want := fmt.Sprintf(format.suppressed, 1000-written); !strings.Contains(out.String(), want) || strings.Count(out.String(), "\n") != 1 {
						t.Errorf("%s: after %v: %q, not %s", message, repeatInterval, out, want)
					}
				}
				out.Reset()
				klog.ErrorS(err, "another place")
				for i := range 100 {
					klog.InfoS("information", "i", i)
				}
				if n := strings.Count(out.String(), "\n"); n != 101 {
					t.Errorf("%d lines from other call sites", n)
				}
			})
		})
	}
}
