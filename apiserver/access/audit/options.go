package audit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/plugin/pkg/audit/log"
	"k8s.io/apiserver/plugin/pkg/audit/webhook"
)

// Options are the flags of auditing, with kube-apiserver's names and defaults.
type Options struct{ genericoptions.AuditOptions }

// NewOptions returns kube-apiserver's defaults: no policy, no backend.
func NewOptions() *Options { return &Options{*genericoptions.NewAuditOptions()} }

// AddFlags adds the flags to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.PolicyFile, "audit-policy-file", o.PolicyFile,
		"File with the audit policy: which requests are recorded, and how much of them. Without it nothing is.")
	addLogFlags(fs, &o.LogOptions)
	addDeliveryFlags(fs, log.PluginName, &o.LogOptions.BatchOptions, &o.LogOptions.TruncateOptions)
	addWebhookFlags(fs, &o.WebhookOptions)
	addDeliveryFlags(fs, webhook.PluginName, &o.WebhookOptions.BatchOptions, &o.WebhookOptions.TruncateOptions)
}

func addLogFlags(fs *pflag.FlagSet, o *genericoptions.AuditLogOptions) {
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
	fs.StringVar(&o.GroupVersionString, "audit-log-version", o.GroupVersionString,
		"API group and version of events in the audit log.")
}

func addWebhookFlags(fs *pflag.FlagSet, o *genericoptions.AuditWebhookOptions) {
	fs.StringVar(&o.ConfigFile, "audit-webhook-config-file", o.ConfigFile,
		"Kubeconfig file of a remote service that events are sent to.")
	const backoff = "How long to wait before a failed delivery is tried again for the first time."
	fs.DurationVar(&o.InitialBackoff, "audit-webhook-initial-backoff", o.InitialBackoff, backoff)
	fs.DurationVar(&o.InitialBackoff, "audit-webhook-batch-initial-backoff", o.InitialBackoff, backoff)
	// MarkDeprecated fails only for a flag that is not defined.
	_ = fs.MarkDeprecated("audit-webhook-batch-initial-backoff", "use --audit-webhook-initial-backoff")
	fs.StringVar(&o.GroupVersionString, "audit-webhook-version", o.GroupVersionString,
		"API group and version of events sent to the webhook.")
}

// addDeliveryFlags adds the flags that say how events reach a backend.
func addDeliveryFlags(
	fs *pflag.FlagSet, backend string, batch *genericoptions.AuditBatchOptions, truncation *genericoptions.AuditTruncateOptions,
) {
	flag := func(name string) string { return "audit-" + backend + "-" + name }
	fs.StringVar(&batch.Mode, flag("mode"), batch.Mode,
		"How events are delivered: "+strings.Join(genericoptions.AllowedModes, ", ")+". Blocking has requests wait for it.")
	fs.IntVar(&batch.BatchConfig.BufferSize, flag("batch-buffer-size"), batch.BatchConfig.BufferSize,
		"Events that are kept before they are delivered; more are dropped. Batch mode only.")
	fs.IntVar(&batch.BatchConfig.MaxBatchSize, flag("batch-max-size"), batch.BatchConfig.MaxBatchSize,
		"Most events in a batch. Batch mode only.")
	fs.DurationVar(&batch.BatchConfig.MaxBatchWait, flag("batch-max-wait"), batch.BatchConfig.MaxBatchWait,
		"Longest wait before a batch that isn't full is delivered. Batch mode only.")
	fs.BoolVar(&batch.BatchConfig.ThrottleEnable, flag("batch-throttle-enable"), batch.BatchConfig.ThrottleEnable,
		"Limit the rate of batches. Batch mode only.")
	fs.Float32Var(&batch.BatchConfig.ThrottleQPS, flag("batch-throttle-qps"), batch.BatchConfig.ThrottleQPS,
		"Average number of batches a second. Batch mode only.")
	fs.IntVar(&batch.BatchConfig.ThrottleBurst, flag("batch-throttle-burst"), batch.BatchConfig.ThrottleBurst,
		"Batches delivered at once when the rate was not used up before. Batch mode only.")
	fs.BoolVar(&truncation.Enabled, flag("truncate-enabled"), truncation.Enabled,
		"Cut events and batches that are too large.")
	fs.Int64Var(&truncation.TruncateConfig.MaxBatchSize, flag("truncate-max-batch-size"), truncation.TruncateConfig.MaxBatchSize,
		"Bytes of a batch beyond which it is split.")
	fs.Int64Var(&truncation.TruncateConfig.MaxEventSize, flag("truncate-max-event-size"), truncation.TruncateConfig.MaxEventSize,
		"Bytes of an event beyond which its request and response are left out, or, if that isn't enough, all of it.")
}

// Validate returns one error for each invalid flag. It does not check the flags of a
// backend that is off.
func (o *Options) Validate() []error {
	var errs []error
	if o.LogOptions.Path != "" {
		errs = append(errs, validateDelivery(log.PluginName, o.LogOptions.GroupVersionString,
			o.LogOptions.BatchOptions, o.LogOptions.TruncateOptions)...)
		if !slices.Contains(log.AllowedFormats, o.LogOptions.Format) {
			errs = append(errs, fmt.Errorf("--audit-log-format: %q is none of %s", o.LogOptions.Format, strings.Join(log.AllowedFormats, ", ")))
		}
		for _, limit := range []struct {
			flag  string
			value int
		}{
			{"audit-log-maxage", o.LogOptions.MaxAge},
			{"audit-log-maxbackup", o.LogOptions.MaxBackups},
			{"audit-log-maxsize", o.LogOptions.MaxSize},
		} {
			if limit.value < 0 {
				errs = append(errs, fmt.Errorf("--%s must not be negative", limit.flag))
			}
		}
	}
	if o.WebhookOptions.ConfigFile != "" {
		errs = append(errs, validateDelivery(webhook.PluginName, o.WebhookOptions.GroupVersionString,
			o.WebhookOptions.BatchOptions, o.WebhookOptions.TruncateOptions)...)
	}
	return errs
}

func validateDelivery(
	backend, version string, batch genericoptions.AuditBatchOptions, truncation genericoptions.AuditTruncateOptions,
) []error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("--audit-"+backend+"-"+format, args...))
	}
	if gv, err := schema.ParseGroupVersion(version); err != nil || gv != auditv1.SchemeGroupVersion {
		wrong("version: %q is not %s", version, auditv1.SchemeGroupVersion)
	}
	if truncation.TruncateConfig.MaxEventSize <= 0 {
		wrong("truncate-max-event-size must be positive")
	}
	if truncation.TruncateConfig.MaxBatchSize < truncation.TruncateConfig.MaxEventSize {
		wrong("truncate-max-batch-size must not be less than the size of one event, %d", truncation.TruncateConfig.MaxEventSize)
	}
	if !slices.Contains(genericoptions.AllowedModes, batch.Mode) {
		wrong("mode: %q is none of %s", batch.Mode, strings.Join(genericoptions.AllowedModes, ", "))
	}
	if batch.Mode != genericoptions.ModeBatch {
		return errs
	}
	if batch.BatchConfig.BufferSize <= 0 {
		wrong("batch-buffer-size must be positive")
	}
	if batch.BatchConfig.MaxBatchSize <= 0 {
		wrong("batch-max-size must be positive")
	}
	if batch.BatchConfig.ThrottleEnable && batch.BatchConfig.ThrottleQPS <= 0 {
		wrong("batch-throttle-qps must be positive")
	}
	if batch.BatchConfig.ThrottleEnable && batch.BatchConfig.ThrottleBurst <= 0 {
		wrong("batch-throttle-burst must be positive")
	}
	return errs
}
