package admission

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apiserver/pkg/audit"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/klog/v2"

	"byre/migrations"
)

// Audit holds the policy and the backend that the filter chain records events with.
type Audit struct {
	// Backend is nil when nothing is recorded.
	Backend audit.Backend
	// Policy decides the audit level of a request; nil without a policy file.
	Policy audit.PolicyRuleEvaluator
}

// NewAudit reads the policy file, opens the log file and configures the webhook. Calls of
// the webhook connect by the selector; nil means a direct connection.
func NewAudit(o *AuditOptions, selector *egressselector.EgressSelector) (*Audit, error) {
	if o.PolicyFile == "" {
		if o.LogOptions.Path != "" || o.WebhookOptions.ConfigFile != "" {
			klog.Warning("Nothing is recorded in audit logs without --audit-policy-file")
		}
		return &Audit{}, nil
	}
	if path := o.LogOptions.Path; path != "" && path != "-" {
		if err := makeLogFile(path); err != nil {
			return nil, fmt.Errorf("--audit-log-path: %w", err)
		}
	}
	config := genericapiserver.Config{EgressSelector: selector}
	if err := o.ApplyTo(&config); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return &Audit{config.AuditBackend, config.AuditPolicyRuleEvaluator}, nil
}

// makeLogFile makes the log file, which upstream would not give to the owner of its directory.
func makeLogFile(path string) error {
	if err := migrations.MkdirAllOwned(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := migrations.OpenOwned(path, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return file.Close()
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
	return nil
}

// AuditOptions are kube-apiserver's flags of auditing.
type AuditOptions struct{ genericoptions.AuditOptions }

// NewAuditOptions returns kube-apiserver's defaults: no policy, no backend.
func NewAuditOptions() *AuditOptions { return &AuditOptions{*genericoptions.NewAuditOptions()} }
