package write

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	tablevalidation "k8s.io/apimachinery/pkg/apis/meta/v1beta1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/apihelpers"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/apiserver/pkg/warning"
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
	// stored is what the store is told about the request, and what it has stored for it.
	stored *storage.Request
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
func (r *write) attributes(
	operation admission.Operation, object, old, options runtime.Object, dryRun []string,
) admission.Attributes {
	s := r.Scope
	return admission.NewAttributesRecord(object, old, s.Kind, r.namespace, r.name, s.Resource, s.Subresource, operation,
		options, dryrun.IsDryRun(dryRun), r.user)
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

// recordAs tells the store about the request. verb is that of RequestInfo if it is empty.
func (r *write) recordAs(verb, manager string) {
	r.stored = newRequest(r.ctx, verb, manager)
	r.ctx = storage.WithRequest(r.ctx, r.stored)
}

// newRequest returns what the store is told about a request. verb is that of RequestInfo if it is empty.
func newRequest(ctx context.Context, verb, manager string) *storage.Request {
	r := &storage.Request{}
	r.Author.Manager, r.Author.AuditID = manager, audit.GetAuditIDTruncated(ctx)
	if info, ok := request.RequestInfoFrom(ctx); ok {
		r.Author.Verb, r.Author.Subresource = info.Verb, info.Subresource
	}
	if verb != "" {
		r.Author.Verb = verb
	}
	who, isOfUser := request.UserFrom(ctx)
	if isOfUser {
		r.Author.User = who.GetName()
	}
	realUser, impersonates := RealUser(ctx)
	r.Author.RealUser = realUser
	isDelete := r.Author.Verb == "delete" || r.Author.Verb == "deletecollection"
	// The quota does not apply to the server's own requests. It applies to a user who impersonates the server.
	isOwn := !impersonates && (!isOfUser || who.GetName() == user.APIServerUser)
	r.Grows = !isDelete && !isOwn
	r.MayOmitManagedFields = !isDelete && r.Author.Verb != "apply" // which has to write them
	return r
}

type realUserKey struct{}

// WithRealUser returns a context that names the authenticated user of a request that
// impersonates another. The store records both.
func WithRealUser(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, realUserKey{}, name)
}

// RealUser returns the name of WithRealUser, and whether the request impersonates another user.
func RealUser(ctx context.Context) (name string, impersonates bool) {
	name, impersonates = ctx.Value(realUserKey{}).(string)
	return name, impersonates
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

// isStrict reports whether a request asks for the check of unknown and repeated fields. The
// default is a warning.
func isStrict(directive string) bool { return directive != metav1.FieldValidationIgnore }

// decode decodes the object in a body to the internal version, and returns the version that
// the body has.
func (r *write) decode(
	info runtime.SerializerInfo, body []byte, into runtime.Object, directive string,
) (runtime.Object, schema.GroupVersion, error) {
	serializer := info.Serializer
	if isStrict(directive) {
		serializer = info.StrictSerializer
	}
	kind := r.Scope.Kind
	obj, gvk, err := r.Scope.Serializer.DecoderToVersion(serializer, r.Scope.HubGroupVersion).Decode(body, &kind, into)
	if err != nil {
		strict, ok := runtime.AsStrictDecodingError(err)
		if !ok || obj == nil || directive != metav1.FieldValidationWarn && directive != "" {
			return nil, schema.GroupVersion{}, r.decodeError(err, into, gvk, body)
		}
		r.warn(strict.Errors())
	}
	r.span.AddEvent("The object was decoded")
	return obj, gvk.GroupVersion(), nil
}

func (r *write) decodeError(cause error, into runtime.Object, gvk *schema.GroupVersionKind, body []byte) error {
	kinds, _, err := r.Scope.Typer.ObjectKinds(into)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if gvk != nil && gvk.Kind != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", gvk.Kind, gvk.Version,
			kinds[0].Kind, cause))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)",
		kinds[0].Kind, cause, summary(body)))
}

// summary returns the beginning of a body, for an error.
func summary(body []byte) string {
	const most = 30
	if len(body) == 0 {
		return "<empty>"
	}
	text, dots := body, ""
	if len(body) > most {
		text, dots = body[:most], " ..."
	}
	if body[0] == '{' {
		return string(text) + dots
	}
	return hex.EncodeToString(text) + dots
}

func badVersion(has, want schema.GroupVersion) error {
	return apierrors.NewBadRequest(
		fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%v)", has, want))
}

// warn adds a warning for each unknown or repeated field. The YAML decoder has several of them
// in one error.
func (r *write) warn(errs []error) {
	for _, err := range errs {
		text, ok := strings.CutPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "),
			"yaml: unmarshal errors:\n")
		if !ok {
			warning.AddWarning(r.req.Context(), "", err.Error())
			continue
		}
		for line := range strings.SplitSeq(text, "\n") {
			warning.AddWarning(r.req.Context(), "", strings.TrimSpace(line))
		}
	}
}

// setNamespace sets the namespace of an object to that of the request. It fails if the object
// has another.
func (r *write) setNamespace(object metav1.Object) error {
	return rest.EnsureObjectNamespaceMatchesRequestNamespace(rest.ExpectedNamespaceForResource(r.namespace,
		r.Scope.Resource), object)
}

// checkName checks that the object has the name and the namespace of the request.
func (r *write) checkName(obj runtime.Object) error {
	namespace, name, err := r.Scope.Namer.ObjectName(obj)
	switch {
	case err != nil:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: %v", r.name,
			err))
	case name != r.name:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)",
			name, r.name))
	case r.namespace != "" && namespace != "" && namespace != r.namespace:
		return apierrors.NewBadRequest(
			fmt.Sprintf("the namespace of the object (%s) does not match the namespace on the request (%s)", namespace,
				r.namespace))
	}
	return nil
}

// hasUID reports whether obj is an object that exists: the live object of an update that
// creates has no UID.
func hasUID(obj runtime.Object) (bool, error) {
	if obj == nil {
		return false, nil
	}
	object, err := meta.Accessor(obj)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	return object.GetUID() != "", nil
}

// mutate calls mutating admission. Managed fields that a plugin has made invalid are set back.
func (r *write) mutate(attributes admission.Attributes) error {
	admit, ok := r.admit.(admission.MutationInterface)
	if !ok || !admit.Handles(attributes.GetOperation()) {
		return nil
	}
	object, err := meta.Accessor(attributes.GetObject())
	if err != nil {
		return admit.Admit(r.ctx, attributes, r.Scope)
	}
	before := slices.Clone(object.GetManagedFields())
	if err := admit.Admit(r.ctx, attributes, r.Scope); err != nil {
		return err
	}
	r.span.AddEvent("Mutating admission is done")
	after := object.GetManagedFields()
	if slices.Equal(before, after) {
		return nil // they are the step's own
	}
	if err := upstream.ValidateManagedFields(after); err != nil {
		object.SetManagedFields(before)
		warning.AddWarning(r.ctx, "",
			fmt.Sprintf(fieldmanager.InvalidManagedFieldsAfterMutatingAdmissionWarningFormat, err.Error()))
	}
	return nil
}

// dedupOwners removes repeated owner references, with a warning.
func (r *write) dedupOwners(obj runtime.Object, isAdmitted bool) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return
	}
	var kept []metav1.OwnerReference
	var repeated []string
	for _, ref := range object.GetOwnerReferences() {
		isSame := func(o metav1.OwnerReference) bool { return o.UID == ref.UID && apiequality.Semantic.DeepEqual(o, ref) }
		if slices.ContainsFunc(kept, isSame) {
			repeated = append(repeated, string(ref.UID))
		} else {
			kept = append(kept, ref)
		}
	}
	if len(repeated) == 0 {
		return
	}
	format := handlers.DuplicateOwnerReferencesWarningFormat
	if isAdmitted {
		format = handlers.DuplicateOwnerReferencesAfterMutatingAdmissionWarningFormat
	}
	warning.AddWarning(r.req.Context(), "", fmt.Sprintf(format, strings.Join(repeated, ", ")))
	object.SetOwnerReferences(kept)
}

// answer answers with the result of a write, in the form that the client asks for.
func (r *write) answer(status int, result runtime.Object) error {
	if r.AnswerStored != nil {
		if stored, ok := r.stored.Stored(result); ok && r.AnswerStored(r.w, r.req, status, stored) {
			return nil
		}
	}
	gv, serializer := r.Scope.Kind.GroupVersion(), r.Scope.Serializer
	if target := r.media.Convert; target != nil {
		var err error
		request.TrackTransformResponseObjectLatency(r.ctx, func() { result, err = r.transform(result, *target) })
		if err != nil {
			return err
		}
		gv, serializer = target.GroupVersion(), apihelpers.GetMetaInternalVersionCodecs()
	}
	responsewriters.WriteObjectNegotiated(serializer, r.Scope, gv, r.w, r.req, status, result, false)
	return nil
}

// transform returns the metadata, or the table, of a result. The negotiation has accepted the
// target.
func (r *write) transform(result runtime.Object, target schema.GroupVersionKind) (runtime.Object, error) {
	if target.Kind == "Table" {
		return r.table(result, target.GroupVersion())
	}
	if _, ok := result.(*metav1.Status); ok {
		return result, nil
	}
	if target.Kind == "PartialObjectMetadataList" {
		return nil,
			notAcceptable(fmt.Sprintf("you requested PartialObjectMetadataList, but the requested object is not a list (%T)",
				result))
	}
	return Partial(result, target.GroupVersion())
}

// Partial returns the metadata of an object in a version of PartialObjectMetadata.
func Partial(obj runtime.Object, gv schema.GroupVersion) (*metav1.PartialObjectMetadata, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	p := meta.AsPartialObjectMetadata(object)
	p.SetGroupVersionKind(gv.WithKind("PartialObjectMetadata"))
	return p, nil
}

func (r *write) table(result runtime.Object, gv schema.GroupVersion) (runtime.Object, error) {
	options, err := DecodeTableOptions(r.req)
	if err != nil {
		return nil, err
	}
	if _, ok := result.(*metav1.Status); ok {
		return result, nil
	}
	table, err := r.Scope.TableConvertor.ConvertToTable(r.ctx, result, options)
	if err != nil {
		return nil, err
	}
	for i := range table.Rows {
		row := &table.Rows[i].Object
		switch options.IncludeObject {
		case metav1.IncludeObject:
			row.Object, err = r.Scope.Convertor.ConvertToVersion(row.Object, r.Scope.Kind.GroupVersion())
		case metav1.IncludeNone:
			row.Object = nil
		default:
			row.Object, err = Partial(row.Object, gv)
		}
		if err != nil {
			return nil, err
		}
	}
	return table, nil
}

// DecodeTableOptions decodes the options of a request for a table.
func DecodeTableOptions(req *http.Request) (*metav1.TableOptions, error) {
	options := &metav1.TableOptions{}
	if err := metainternalversionscheme.ParameterCodec.DecodeParameters(req.URL.Query(), metav1.SchemeGroupVersion,
		options); err != nil {
		return nil, err
	}
	switch errs := tablevalidation.ValidateTableOptions(options); len(errs) {
	case 0:
		return options, nil
	case 1:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: %v", errs[0].Error()))
	default:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: %v", errs))
	}
}

// notAcceptable is upstream's error of a form that the result does not have.
func notAcceptable(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotAcceptable,
		Reason: "NotAcceptable", Message: message}}
}
