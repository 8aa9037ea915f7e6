package audit

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	"k8s.io/apiserver/plugin/pkg/audit/log"
	"k8s.io/apiserver/plugin/pkg/audit/truncate"
	"k8s.io/apiserver/plugin/pkg/audit/webhook"
)

// Modes in which a backend receives events.
const (
	// ModeBatch buffers events and writes them asynchronously.
	ModeBatch = "batch"
	// ModeBlocking makes a request wait until its event is written or has failed.
	ModeBlocking = "blocking"
	// ModeBlockingStrict also fails a request if its RequestReceived event could
	// not be recorded.
	ModeBlockingStrict = "blocking-strict"
)

func modes() []string { return []string{ModeBatch, ModeBlocking, ModeBlockingStrict} }

// Options are the flags of auditing, with kube-apiserver's names and defaults.
type Options struct {
	PolicyFile string
	Log        LogOptions
	Webhook    WebhookOptions
}

// LogOptions configure the log file.
type LogOptions struct {
	// Path is the file, "-" for standard output; empty: no log.
	Path string
	// MaxAge in days, MaxBackups in files, MaxSize in megabytes; 0: no limit.
	MaxAge     int
	MaxBackups int
	MaxSize    int
	Compress   bool
	Format     string

	Version  string
	Delivery DeliveryOptions
}

// WebhookOptions configure the webhook.
type WebhookOptions struct {
	// ConfigFile is a kubeconfig; empty: no webhook.
	ConfigFile     string
	InitialBackoff time.Duration

	Version  string
	Delivery DeliveryOptions
}

// DeliveryOptions say how events reach one backend.
type DeliveryOptions struct {
	Mode            string
	Batch           buffered.BatchConfig
	TruncateEnabled bool
	Truncate        truncate.Config
}

// NewOptions returns kube-apiserver's defaults: no policy, no backend.
func NewOptions() *Options {
	const bufferSize = 10000
	truncation := truncate.Config{MaxBatchSize: 10 << 20, MaxEventSize: 100 << 10}
	version := auditv1.SchemeGroupVersion.String()
	return &Options{
		Log: LogOptions{
			MaxAge: 366, MaxBackups: 100, MaxSize: 100,
			Format:  log.FormatJson,
			Version: version,
			Delivery: DeliveryOptions{
				Mode: ModeBlocking,
				// A file gains nothing from batches or from concurrent writes.
				Batch:    buffered.BatchConfig{BufferSize: bufferSize, MaxBatchSize: 1},
				Truncate: truncation,
			},
		},
		Webhook: WebhookOptions{
			InitialBackoff: webhook.DefaultInitialBackoffDelay,
			Version:        version,
			Delivery: DeliveryOptions{
				Mode: ModeBatch,
				Batch: buffered.BatchConfig{
					BufferSize: bufferSize, MaxBatchSize: 400, MaxBatchWait: 30 * time.Second,
					ThrottleEnable: true, ThrottleQPS: 10, ThrottleBurst: 15,
					AsyncDelegate: true,
				},
				Truncate: truncation,
			},
		},
	}
}

// AddFlags adds the flags to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.PolicyFile, "audit-policy-file", o.PolicyFile,
		"File with the audit policy: which requests are recorded, and how much of them. Without it nothing is.")
	o.Log.addFlags(fs)
	o.Log.Delivery.addFlags(fs, log.PluginName)
	o.Webhook.addFlags(fs)
	o.Webhook.Delivery.addFlags(fs, webhook.PluginName)
}

func (o *LogOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Path, "audit-log-path", o.Path,
		"File to record requests in; '-' is standard output.")
	fs.IntVar(&o.MaxAge, "audit-log-maxage", o.MaxAge,
		"Days for which old audit logs are kept. 0: forever.")
	fs.IntVar(&o.MaxBackups, "audit-log-maxbackup", o.MaxBackups,
		"Number of old audit logs that are kept. 0: all.")
	fs.IntVar(&o.MaxSize, "audit-log-maxsize", o.MaxSize,
		"Megabytes at which the audit log is rotated. 0: never.")
	fs.BoolVar(&o.Compress, "audit-log-compress", o.Compress,
		"Compress rotated audit logs with gzip.")
	fs.StringVar(&o.Format, "audit-log-format", o.Format,
		"Format of the audit log: "+strings.Join(log.AllowedFormats, ", ")+".")
	fs.StringVar(&o.Version, "audit-log-version", o.Version,
		"API group and version of events in the audit log.")
}

func (o *WebhookOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ConfigFile, "audit-webhook-config-file", o.ConfigFile,
		"Kubeconfig file of a remote service that events are sent to.")
	const backoff = "How long to wait before a failed delivery is tried again for the first time."
	fs.DurationVar(&o.InitialBackoff, "audit-webhook-initial-backoff", o.InitialBackoff, backoff)
	fs.DurationVar(&o.InitialBackoff, "audit-webhook-batch-initial-backoff", o.InitialBackoff, backoff)
	// MarkDeprecated fails only for a flag that is not defined.
	_ = fs.MarkDeprecated("audit-webhook-batch-initial-backoff", "use --audit-webhook-initial-backoff")
	fs.StringVar(&o.Version, "audit-webhook-version", o.Version,
		"API group and version of events sent to the webhook.")
}

func (o *DeliveryOptions) addFlags(fs *pflag.FlagSet, backend string) {
	flag := func(name string) string { return "audit-" + backend + "-" + name }
	fs.StringVar(&o.Mode, flag("mode"), o.Mode,
		"How events are delivered: "+strings.Join(modes(), ", ")+". Blocking has requests wait for it.")
	fs.IntVar(&o.Batch.BufferSize, flag("batch-buffer-size"), o.Batch.BufferSize,
		"Events that are kept before they are delivered; more are dropped. Batch mode only.")
	fs.IntVar(&o.Batch.MaxBatchSize, flag("batch-max-size"), o.Batch.MaxBatchSize,
		"Most events in a batch. Batch mode only.")
	fs.DurationVar(&o.Batch.MaxBatchWait, flag("batch-max-wait"), o.Batch.MaxBatchWait,
		"Longest wait before a batch that isn't full is delivered. Batch mode only.")
	fs.BoolVar(&o.Batch.ThrottleEnable, flag("batch-throttle-enable"), o.Batch.ThrottleEnable,
		"Limit the rate of batches. Batch mode only.")
	fs.Float32Var(&o.Batch.ThrottleQPS, flag("batch-throttle-qps"), o.Batch.ThrottleQPS,
		"Average number of batches a second. Batch mode only.")
	fs.IntVar(&o.Batch.ThrottleBurst, flag("batch-throttle-burst"), o.Batch.ThrottleBurst,
		"Batches delivered at once when the rate was not used up before. Batch mode only.")
	fs.BoolVar(&o.TruncateEnabled, flag("truncate-enabled"), o.TruncateEnabled,
		"Cut events and batches that are too large.")
	fs.Int64Var(&o.Truncate.MaxBatchSize, flag("truncate-max-batch-size"), o.Truncate.MaxBatchSize,
		"Bytes of a batch beyond which it is split.")
	fs.Int64Var(&o.Truncate.MaxEventSize, flag("truncate-max-event-size"), o.Truncate.MaxEventSize,
		"Bytes of an event beyond which its request and response are left out, or, if that isn't enough, all of it.")
}

// Validate returns one error for each invalid flag. It does not check the flags of a
// backend that is off.
func (o *Options) Validate() []error {
	var errs []error
	if o.Log.Path != "" {
		errs = append(errs, o.Log.Delivery.validate(log.PluginName, o.Log.Version)...)
		if !slices.Contains(log.AllowedFormats, o.Log.Format) {
			errs = append(errs, fmt.Errorf("--audit-log-format: %q is none of %s", o.Log.Format, strings.Join(log.AllowedFormats, ", ")))
		}
		for _, limit := range []struct {
			flag  string
			value int
		}{
			{"audit-log-maxage", o.Log.MaxAge},
			{"audit-log-maxbackup", o.Log.MaxBackups},
			{"audit-log-maxsize", o.Log.MaxSize},
		} {
			if limit.value < 0 {
				errs = append(errs, fmt.Errorf("--%s must not be negative", limit.flag))
			}
		}
	}
	if o.Webhook.ConfigFile != "" {
		errs = append(errs, o.Webhook.Delivery.validate(webhook.PluginName, o.Webhook.Version)...)
	}
	return errs
}

func (o *DeliveryOptions) validate(backend, version string) []error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("--audit-"+backend+"-"+format, args...))
	}
	if gv, err := schema.ParseGroupVersion(version); err != nil || gv != auditv1.SchemeGroupVersion {
		wrong("version: %q is not %s", version, auditv1.SchemeGroupVersion)
	}
	if o.Truncate.MaxEventSize <= 0 {
		wrong("truncate-max-event-size must be positive")
	}
	if o.Truncate.MaxBatchSize < o.Truncate.MaxEventSize {
		wrong("truncate-max-batch-size must not be less than the size of one event, %d", o.Truncate.MaxEventSize)
	}
	if !slices.Contains(modes(), o.Mode) {
		wrong("mode: %q is none of %s", o.Mode, strings.Join(modes(), ", "))
	}
	if o.Mode != ModeBatch {
		return errs
	}
	if o.Batch.BufferSize <= 0 {
		wrong("batch-buffer-size must be positive")
	}
	if o.Batch.MaxBatchSize <= 0 {
		wrong("batch-max-size must be positive")
	}
	if o.Batch.ThrottleEnable && o.Batch.ThrottleQPS <= 0 {
		wrong("batch-throttle-qps must be positive")
	}
	if o.Batch.ThrottleEnable && o.Batch.ThrottleBurst <= 0 {
		wrong("batch-throttle-burst must be positive")
	}
	return errs
}
