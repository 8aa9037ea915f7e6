package admission

import genericoptions "k8s.io/apiserver/pkg/server/options"

// AuditOptions are kube-apiserver's flags of auditing.
type AuditOptions struct{ genericoptions.AuditOptions }

// NewAuditOptions returns kube-apiserver's defaults: no policy, no backend.
func NewAuditOptions() *AuditOptions { return &AuditOptions{*genericoptions.NewAuditOptions()} }
