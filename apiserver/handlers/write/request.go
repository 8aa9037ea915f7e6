package write

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/component-base/tracing"

	"byre/apiserver/handlers/managedfields"
	"byre/apiserver/storage"
	"byre/apiserver/storage/encoding"
)

const (
	// timeout bounds a write of one object; upstream's requestTimeoutUpperBound.
	timeout = 34 * time.Second
	// slow is how long a write may take before its trace is logged; upstream's value.
	slow = 500 * time.Millisecond
)

// Handlers serves the writes of one resource. It is immutable and safe for concurrent use.
type Handlers struct {
	Scope     *handlers.RequestScope
	Admission admission.Interface
	// Fields computes the managed fields.
	Fields *managedfields.Manager
	// PatchTypes are the media types of patches that are accepted.
	PatchTypes []string
	// AnswerStored answers a write with what was stored, and returns false for a request
	// that asks for another form. It is nil where no request can be answered so.
	AnswerStored func(w http.ResponseWriter, req *http.Request, status int, stored encoding.Encoded) bool
}

// write is one request while it is served.
type write struct {
	*Handlers
	w   http.ResponseWriter
	req *http.Request
	// ctx has the deadline and, once it is known, the namespace.
	ctx context.Context
	// span has an event for each step, which are logged of a slow write.
	span            *tracing.Span
	namespace, name string
	// media is the form in which the client wants the answer.
	media negotiation.MediaTypeOptions
	// admit is the admission chain, whose annotations go into the audit log.
	admit admission.Interface
	user  user.Info
	// record is what the store keeps of the request, and what it has stored.
	record *storage.Write
}

// serve returns a handler that calls verb for each request and answers with its error, if it
// returns one.
func (h *Handlers) serve(name string, verb func(*write) error) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		ctx, span := tracing.Start(req.Context(), name, TraceFields(req)...)
		defer span.End(slow)
		req = req.WithContext(ctx)
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		r := &write{Handlers: h, w: w, req: req, ctx: ctx, span: span, admit: admission.WithAudit(h.Admission)}
		r.user, _ = request.UserFrom(ctx)
		if err := verb(r); err != nil {
			if ctxErr := r.ctx.Err(); ctxErr != nil { // whatever it was doing then
				err = apierrors.NewTimeoutError(fmt.Sprintf("request did not complete within requested timeout - %s", ctxErr), 0)
			}
			responsewriters.ErrorNegotiated(err, h.Scope.Serializer, h.Scope.Kind.GroupVersion(), w, req)
		}
	}
}

// TraceFields returns the attributes of a request's trace; they are some of those of upstream's
// handlers.
func TraceFields(req *http.Request) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("audit-id", audit.GetAuditIDTruncated(req.Context())),
		attribute.String("url", req.URL.Path),
		attribute.String("user-agent", req.UserAgent()),
	}
}

// findObject takes the namespace and the name of the object from the path.
func (r *write) findObject() (err error) {
	if r.namespace, r.name, err = r.Scope.Namer.Name(r.req); err != nil {
		return err
	}
	r.ctx = request.WithNamespace(r.ctx, r.namespace)
	return nil
}

// negotiate finds the form of the answer.
func (r *write) negotiate() (err error) {
	r.media, _, err = negotiation.NegotiateOutputMediaType(r.req, r.Scope.Serializer, r.Scope)
	return err
}

// readBody reads the whole body, which must not exceed the scope's limit.
func (r *write) readBody(verb requestmetrics.RequestBodyVerb) ([]byte, error) {
	defer r.req.Body.Close()
	limit := r.Scope.MaxRequestBodyBytes
	body, err := io.ReadAll(io.LimitReader(r.req.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(body)) > limit {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", limit))
	}
	r.span.AddEvent("The body was read", attribute.Int("len", len(body)))
	requestmetrics.RecordRequestBodySize(r.ctx, r.Scope.Resource.GroupResource(), verb, len(body))
	return body, nil
}

// decodeOptions decodes the options of a write from the query.
func (r *write) decodeOptions(options runtime.Object) error {
	return decodeQuery(r.req, r.Scope.MetaGroupVersion, options)
}

func decodeQuery(req *http.Request, version schema.GroupVersion, options runtime.Object) error {
	if err := metainternalversionscheme.ParameterCodec.DecodeParameters(req.URL.Query(), version, options); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

// checkOptions returns the error of invalid options, and completes valid ones.
func checkOptions(kind string, meta *metav1.TypeMeta, errs field.ErrorList) error {
	if len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
	}
	meta.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind(kind))
	return nil
}

// attributes describes the request to admission. object and old are nil where admission
// learns them later.
func (r *write) attributes(operation admission.Operation, object, old, options runtime.Object, dryRun []string) admission.Attributes {
	s := r.Scope
	return admission.NewAttributesRecord(object, old, s.Kind, r.namespace, r.name, s.Resource, s.Subresource, operation, options, dryrun.IsDryRun(dryRun), r.user)
}

// manager is the field manager of the request: the one that it names, or else the user agent up
// to the first slash, without characters that can't be printed.
func (r *write) manager(named string) string {
	if named != "" {
		return named
	}
	agent, _, _ := strings.Cut(r.req.UserAgent(), "/")
	var b strings.Builder
	for _, c := range agent {
		if !unicode.IsPrint(c) {
			continue
		}
		if b.Len()+utf8.RuneLen(c) > validation.FieldManagerMaxLength {
			break
		}
		b.WriteRune(c)
	}
	return b.String()
}

// recordAs gives the store what it records of the request. verb is that of RequestInfo if it is
// empty.
func (r *write) recordAs(verb, manager string) {
	r.record = &storage.Write{Verb: verb, Manager: manager}
	r.ctx = storage.WithWrite(r.ctx, r.record)
}

// finish returns the result of a finished operation, or its error, which may be a Status too.
func (r *write) finish(result runtime.Object, err error) (runtime.Object, error) {
	if err != nil {
		r.span.AddEvent("The write failed", attribute.String("err", err.Error()))
		return nil, err
	}
	r.span.AddEvent("The object is stored")
	if status, ok := result.(*metav1.Status); ok && status.Status != metav1.StatusSuccess {
		return nil, apierrors.FromObject(status)
	}
	return result, nil
}
