package handlers

import (
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"k8s.io/apiserver/pkg/audit"
)

// traceFields returns the attributes of a request's trace; they are those of upstream's
// handlers.
func traceFields(req *http.Request) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("audit-id", audit.GetAuditIDTruncated(req.Context())),
		attribute.String("url", req.URL.Path),
		attribute.String("user-agent", req.UserAgent()),
	}
}
