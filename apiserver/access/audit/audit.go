package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	"k8s.io/apiserver/plugin/pkg/audit/log"
	"k8s.io/apiserver/plugin/pkg/audit/truncate"
	"k8s.io/apiserver/plugin/pkg/audit/webhook"
	"k8s.io/klog/v2"

	"byre/migrations/fileowner"
)

// Audit holds the policy and the backend that the filter chain records events with.
type Audit struct {
	// Backend is nil when nothing is recorded.
	Backend audit.Backend
	// Policy decides the audit level of a request; nil without a policy file.
	Policy audit.PolicyRuleEvaluator

	file io.Closer // the log file; nil without one
}

// New reads the policy file, opens the log file and configures the webhook. Calls of
// the webhook connect through dial; nil means a direct connection.
func New(o *Options, dial utilnet.DialFunc) (*Audit, error) {
	a := &Audit{}
	if o.PolicyFile == "" {
		if o.LogOptions.Path != "" || o.WebhookOptions.ConfigFile != "" {
			klog.Warning("Nothing is recorded in audit logs without --audit-policy-file")
		}
		return a, nil
	}
	rules, err := policy.LoadPolicyFromFile(o.PolicyFile)
	if err != nil {
		return nil, fmt.Errorf("--audit-policy-file: %w", err)
	}
	a.Policy = policy.NewPolicyRuleEvaluator(rules)

	var backends []audit.Backend
	if o.LogOptions.Path != "" {
		backend, err := a.newLogBackend(&o.LogOptions)
		if err != nil {
			return nil, fmt.Errorf("--audit-log-path: %w", err)
		}
		backends = append(backends, backend)
	}
	if o.WebhookOptions.ConfigFile != "" {
		backend, err := newWebhookBackend(&o.WebhookOptions, dial)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("--audit-webhook-config-file: %w", err), a.close())
		}
		backends = append(backends, backend)
	}
	switch len(backends) {
	case 0:
	case 1:
		a.Backend = backends[0]
	default:
		a.Backend = audit.Union(backends...)
	}
	return a, nil
}

// Run runs the backends until ctx ends, then flushes the events that they buffer and
// stops them. ctx must end after the last request that is recorded.
func (a *Audit) Run(ctx context.Context) error {
	if a.Backend == nil {
		<-ctx.Done()
		return nil
	}
	if err := a.Backend.Run(ctx.Done()); err != nil {
		return fmt.Errorf("starting the audit backend: %w", err)
	}
	<-ctx.Done()
	a.Backend.Shutdown() // returns when all events are written
	return a.close()
}

func (a *Audit) close() error {
	if a.file == nil {
		return nil
	}
	return a.file.Close()
}

func (a *Audit) newLogBackend(o *genericoptions.AuditLogOptions) (audit.Backend, error) {
	writer, err := a.openLogFile(o)
	if err != nil {
		return nil, err
	}
	version, err := schema.ParseGroupVersion(o.GroupVersionString)
	if err != nil {
		return nil, err
	}
	return wrap(log.NewBackend(writer, o.Format, version), o.BatchOptions, o.TruncateOptions, version), nil
}

func (a *Audit) openLogFile(o *genericoptions.AuditLogOptions) (io.Writer, error) {
	if o.Path == "-" {
		return os.Stdout, nil
	}
	// Opening the file here creates it with mode 0600 and makes a path that
	// cannot be written fail at the start, not at the first event.
	if err := fileowner.MkdirAll(filepath.Dir(o.Path), 0o700); err != nil {
		return nil, err
	}
	file, err := fileowner.Open(o.Path, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if o.MaxSize == 0 {
		a.file = file
		return file, nil
	}
	if err := file.Close(); err != nil {
		return nil, err
	}
	rotated := &lumberjack.Logger{
		Filename:   o.Path,
		MaxAge:     o.MaxAge,
		MaxBackups: o.MaxBackups,
		MaxSize:    o.MaxSize,
		Compress:   o.Compress,
	}
	a.file = rotated
	return rotated, nil
}

func newWebhookBackend(o *genericoptions.AuditWebhookOptions, dial utilnet.DialFunc) (audit.Backend, error) {
	version, err := schema.ParseGroupVersion(o.GroupVersionString)
	if err != nil {
		return nil, err
	}
	backend, err := webhook.NewBackend(o.ConfigFile, version,
		webhookutil.DefaultRetryBackoffWithInitialDelay(o.InitialBackoff), dial)
	if err != nil {
		return nil, err
	}
	return wrap(backend, o.BatchOptions, o.TruncateOptions, version), nil
}

// wrap wraps backend as its options say.
func wrap(
	backend audit.Backend, batch genericoptions.AuditBatchOptions, truncation genericoptions.AuditTruncateOptions, version schema.GroupVersion,
) audit.Backend {
	switch batch.Mode {
	case genericoptions.ModeBlockingStrict:
	case genericoptions.ModeBlocking:
		backend = ignoreErrorsBackend{backend}
	default:
		backend = buffered.NewBackend(backend, batch.BatchConfig)
	}
	if !truncation.Enabled {
		return backend
	}
	return truncate.NewBackend(backend, truncation.TruncateConfig, version)
}

// ignoreErrorsBackend reports success for events that the backend failed to record,
// so that the request is served. The backend has counted the failure. It is a copy of
// the unexported type in k8s.io/apiserver/pkg/server/options/audit.go.
type ignoreErrorsBackend struct {
	audit.Backend
}

func (l ignoreErrorsBackend) ProcessEvents(events ...*auditapi.Event) bool {
	l.Backend.ProcessEvents(events...)
	return true
}

func (l ignoreErrorsBackend) String() string { return fmt.Sprintf("ignoreErrors<%s>", l.Backend) }
