package audit

import genericoptions "k8s.io/apiserver/pkg/server/options"

// Options are kube-apiserver's flags of auditing.
type Options struct{ genericoptions.AuditOptions }

// NewOptions returns kube-apiserver's defaults: no policy, no backend.
func NewOptions() *Options { return &Options{*genericoptions.NewAuditOptions()} }
