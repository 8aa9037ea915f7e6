package query

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/admission"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/utils/ptr"

	"byre/apiserver/handlers"
	"byre/apiserver/handlers/documents"
	"byre/apiserver/storage/changes"
	"byre/apiserver/storage/encoding"
	"byre/sqlstore"
	"byre/watch"
)

// GroupName is the name of the group.
const GroupName = "sql.byre.dev"

var (
	groupVersion = schema.GroupVersion{Group: GroupName, Version: "v1"}
	queries      = groupVersion.WithResource("queries")
	queryKind    = groupVersion.WithKind("Query")
)

// newScheme returns a scheme with the types of the group.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(groupVersion, &Query{})
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	// By it a webhook's or a policy's change of a query reaches the query.
	utilruntime.Must(scheme.AddConversionFunc((*Query)(nil), (*Query)(nil), func(from, to any, _ conversion.Scope) error {
		*to.(*Query) = *from.(*Query).DeepCopyObject().(*Query)
		return nil
	}))
	return scheme
}

// NewGroup returns the group that a Storage serves.
func NewGroup(s *Storage) handlers.Group {
	return handlers.NewTextGroup(groupVersion, newScheme(), map[string]rest.Storage{queries.Resource: s})
}

const modelPrefix = "dev.byre.sql.v1."

// OpenAPIModelName names the type in OpenAPI documents.
func (Query) OpenAPIModelName() string { return modelPrefix + "Query" }

// OpenAPIModelName names the type in OpenAPI documents.
func (Spec) OpenAPIModelName() string { return modelPrefix + "QuerySpec" }

// OpenAPIModelName names the type in OpenAPI documents.
func (Status) OpenAPIModelName() string { return modelPrefix + "QueryStatus" }

// OpenAPIModelName names the type in OpenAPI documents.
func (ResultColumn) OpenAPIModelName() string { return modelPrefix + "ResultColumn" }

// Definitions is what upstream's generator would make of the types.
func Definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	return documents.Definitions(ref,
		documents.Model{Type: Query{},
			Description: "Query is one SELECT over the objects that the user may list. It is not stored: its creation is answered with the result."},
		documents.Model{Type: Spec{}, Description: "QuerySpec is what is asked."},
		documents.Model{Type: Status{}, Description: "QueryStatus is the result of a query."},
		documents.Model{Type: ResultColumn{}, Description: "ResultColumn is a column of a result."})
}

// Query asks one statement. It is not stored: its creation is answered with the result, in Status.
type Query struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty" description:"Standard object's metadata. A query is not stored and needs no name."`

	Spec   Spec   `json:"spec" description:"Spec is what is asked."`
	Status Status `json:"status,omitempty" description:"Status is the result."`
}

// NewQuery returns the Query of a statement, with the values of its parameters.
func NewQuery(statement string, parameters ...json.RawMessage) *Query {
	return &Query{
		TypeMeta: metav1.TypeMeta{APIVersion: groupVersion.String(), Kind: queryKind.Kind},
		Spec:     Spec{SQL: statement, Parameters: parameters},
	}
}

// CellText is a value of a result as text: a string without its quotes, and nothing for NULL.
func CellText(value json.RawMessage) string {
	var text *string
	if err := json.Unmarshal(value, &text); err != nil {
		return string(value)
	}
	return ptr.Deref(text, "")
}

// Texts returns the values of parameters that are texts, whatever they look like.
func Texts(texts ...string) (values []json.RawMessage) {
	for _, text := range texts {
		value, _ := json.Marshal(text) // a string can't fail
		values = append(values, value)
	}
	return values
}

// Spec is what is asked. A nil Limit means mostRows, or mostStreamed for an answer that is streamed.
type Spec struct {
	SQL            string            `json:"sql" description:"SQL is one SELECT, in SQLite's dialect. The tables are the plural names of resources, such as pods, or \"deployments.apps\"."`
	At             string            `json:"at,omitempty" description:"At is the moment that the tables show: a revision, a time such as 2026-12-01T15:04:05Z, yesterday 14:00 or 2026-12-01, in UTC if it has no zone, or a duration before now such as 2h. Empty means now."`
	Parameters     []json.RawMessage `json:"parameters,omitempty" description:"Parameters are the values of ?1, ?2, …: strings, numbers, booleans or null."`
	TimeoutSeconds *int32            `json:"timeoutSeconds,omitempty" description:"TimeoutSeconds bounds the query, if it is less than the server's --sql-timeout."`
	Limit          *int64            `json:"limit,omitempty" description:"Limit is how many rows the answer has at most. Defaults to 10000, which is also the most."`
}

// Status is the result.
type Status struct {
	ResourceVersion string         `json:"resourceVersion,omitempty" description:"ResourceVersion is the revision that all tables show."`
	Columns         []ResultColumn `json:"columns,omitempty" description:"Columns are the columns of the result."`
	// A value of a column of the type json is any JSON; others are a string, number, boolean or null.
	Rows      [][]json.RawMessage `json:"rows" openapi:"optional" description:"Rows have a value for each column."`
	Truncated bool                `json:"truncated,omitempty" description:"Truncated says that there are more rows than the limit."`
}

// ResultColumn is a column of a result.
type ResultColumn struct {
	Name string `json:"name" description:"Name is the name of the column."`
	Type string `json:"type,omitempty" description:"Type is text, integer, real, boolean, time or json; absent for an expression, whose values may be of any type."`
}

// DeepCopyObject implements runtime.Object.
func (q *Query) DeepCopyObject() runtime.Object {
	out := *q
	q.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Parameters = cloneValues(q.Spec.Parameters)
	if q.Spec.TimeoutSeconds != nil {
		out.Spec.TimeoutSeconds = new(*q.Spec.TimeoutSeconds)
	}
	if q.Spec.Limit != nil {
		out.Spec.Limit = new(*q.Spec.Limit)
	}
	out.Status.Columns = slices.Clone(q.Status.Columns)
	out.Status.Rows = slices.Clone(q.Status.Rows)
	for i, row := range out.Status.Rows {
		out.Status.Rows[i] = cloneValues(row)
	}
	return &out
}

func cloneValues(values []json.RawMessage) []json.RawMessage {
	values = slices.Clone(values)
	for i, v := range values {
		values[i] = slices.Clone(v)
	}
	return values
}

// ConvertToTable implements rest.TableConvertor: the table is the result.
func (*Storage) ConvertToTable(_ context.Context, obj runtime.Object, _ runtime.Object) (*metav1.Table, error) {
	q, ok := obj.(*Query)
	if !ok {
		return nil, fmt.Errorf("not a Query: %T", obj)
	}
	table := &metav1.Table{ListMeta: metav1.ListMeta{ResourceVersion: q.Status.ResourceVersion}, Rows: []metav1.TableRow{}}
	for _, c := range q.Status.Columns {
		definition := metav1.TableColumnDefinition{Name: c.Name, Type: "string"}
		switch Type(strings.ToUpper(c.Type)) {
		case Integer:
			definition.Type = "integer"
		case Real:
			definition.Type = "number"
		case Boolean:
			definition.Type = "boolean"
		}
		table.ColumnDefinitions = append(table.ColumnDefinitions, definition)
	}
	for _, values := range q.Status.Rows {
		row := metav1.TableRow{Cells: make([]any, len(values)),
			Object: runtime.RawExtension{Object: &metav1.PartialObjectMetadata{}}}
		for i, value := range values {
			if err := json.Unmarshal(value, &row.Cells[i]); err != nil {
				return nil, err
			}
			switch row.Cells[i].(type) {
			case map[string]any, []any:
				row.Cells[i] = string(value)
			}
		}
		table.Rows = append(table.Rows, row)
	}
	return table, nil
}

// The media types that a Handler adds to those of every resource: that of a request, and those of
// streams.
const (
	sqlType = "application/sql"
	CSV     = "text/csv"
	NDJSON  = "application/x-ndjson"
)

// Path is the path of the resource.
const Path = "/apis/" + GroupName + "/v1/queries"

// Handler serves what the handlers of resources can't: bodies of the type application/sql, and answers
// that are streamed, as CSV or as one JSON object a row. Other requests go to the delegate.
//
// The headers of a stream have the revision, the columns, and how many rows it has at most: a stream of so
// many rows may be cut off. A stream that fails ends with its connection.
type Handler struct {
	storage   *Storage
	admission admission.Interface
	objects   admission.ObjectInterfaces
	codecs    serializer.CodecFactory
	delegate  http.Handler
}

// NewHandler makes a Handler in front of the one that serves the group. plugins admit the queries of streams, as
// the delegate has them admit the others.
func NewHandler(s *Storage, plugins admission.Interface, delegate http.Handler) *Handler {
	scheme := newScheme()
	return &Handler{s, admission.WithAudit(plugins), admission.NewObjectInterfacesFromScheme(scheme),
		serializer.NewCodecFactory(scheme), delegate}
}

// The headers of a stream.
const (
	revisionHeader = "Byre-Resource-Version"
	columnsHeader  = "Byre-Columns"
	LimitHeader    = "Byre-Limit"
)

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	given, _, _ := mime.ParseMediaType(req.Header.Get("Content-Type"))
	wanted := streamed(req.Header.Get("Accept"))
	if req.Method != http.MethodPost || given != sqlType && wanted == "" {
		h.delegate.ServeHTTP(w, req)
		return
	}
	serve := func(w http.ResponseWriter, req *http.Request) {
		if err := h.serve(w, req, given, wanted); err != nil {
			responsewriters.ErrorNegotiated(err, h.codecs, groupVersion, w, req)
		}
	}
	if wanted != "" { // the delegate counts the others
		serve = metrics.InstrumentHandlerFunc(http.MethodPost, GroupName, groupVersion.Version, queries.Resource, "",
			"cluster", metrics.APIServerComponent, false, "", serve)
	}
	serve(w, req)
}

// streamed returns the type of stream that a client wants; empty if it would rather have another answer.
func streamed(accept string) string {
	first, _, _ := strings.Cut(accept, ",")
	media, _, _ := mime.ParseMediaType(first)
	if media == CSV || media == NDJSON {
		return media
	}
	return ""
}

func (h *Handler) serve(w http.ResponseWriter, req *http.Request, given, wanted string) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	if err != nil {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	}
	if given == sqlType {
		if body, err = json.Marshal(&Query{TypeMeta: metav1.TypeMeta{Kind: queryKind.Kind, APIVersion: groupVersion.String()},
			Spec: Spec{SQL: string(body)}}); err != nil {
			return err
		}
	}
	if wanted == "" {
		req = req.Clone(req.Context())
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		req.Header.Set("Content-Type", runtime.ContentTypeJSON)
		h.delegate.ServeHTTP(w, req)
		return nil
	}
	q := &Query{}
	if err := runtime.DecodeInto(h.codecs.UniversalDeserializer(), body, q); err != nil {
		return apierrors.NewBadRequest("the body is not a Query: " + err.Error())
	}
	audit.LogRequestObject(req.Context(), q, groupVersion, queries, "", h.codecs)
	if audit.AuditContextFrom(
		audit.WithAuditContext(req.Context())).GetEventLevel() == auditinternal.LevelRequestResponse {
		return newError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"the audit policy records answers, which it can't of a stream: ask for JSON")
	}
	if err := h.admit(req.Context(), q); err != nil {
		return err
	}
	out := newStream(w, wanted)
	if err := h.storage.run(req.Context(), &q.Spec, mostStreamed, out); err == nil || !out.begun {
		return err
	}
	panic(http.ErrAbortHandler) // the client has rows already: it sees a broken connection, not a short answer
}

// admit has the plugins admit a query. They may change it.
func (h *Handler) admit(ctx context.Context, q *Query) error {
	who, _ := request.UserFrom(ctx)
	options := &metav1.CreateOptions{TypeMeta: metav1.TypeMeta{APIVersion: metav1.SchemeGroupVersion.String(),
		Kind: "CreateOptions"}}
	attributes := admission.NewAttributesRecord(q, nil, queryKind, "", "", queries, "", admission.Create, options, false,
		who)
	if plugins, ok := h.admission.(admission.MutationInterface); ok && plugins.Handles(admission.Create) {
		if err := plugins.Admit(ctx, attributes, h.objects); err != nil {
			return err
		}
	}
	return rest.AdmissionToValidateObjectFunc(h.admission, attributes, h.objects)(ctx, q)
}

// maxBody bounds a body: the statement, its parameters, and their escapes.
const maxBody = 1 << 20

// stream is a result that is sent row by row.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController // of w
	headers map[string]string
	// begun is true once rows were sent.
	begun    bool
	deadline time.Time
	columns  []ResultColumn
	buffer   bytes.Buffer
	csv      *csv.Writer // to buffer; nil for rows in JSON
}

func newStream(w http.ResponseWriter, media string) *stream {
	s := &stream{w: w, control: http.NewResponseController(w), headers: map[string]string{"Content-Type": media}}
	if media == CSV {
		s.csv = csv.NewWriter(&s.buffer)
	}
	return s
}

func (s *stream) begin(h head) error {
	s.columns = h.columns
	s.headers[revisionHeader], s.headers[columnsHeader], s.headers[LimitHeader] = h.revision,
		string(appendJSON(nil, h.columns)), strconv.FormatInt(h.most, 10)
	s.deadline = h.deadline
	if s.csv == nil {
		return nil
	}
	names := make([]string, len(h.columns))
	for i, c := range h.columns {
		names[i] = c.Name
	}
	return s.record(names)
}

// record writes a line of CSV. The writer makes a lone empty text a line that is empty, which readers skip.
func (s *stream) record(texts []string) error {
	if len(texts) > 1 || texts[0] != "" {
		return s.csv.Write(texts)
	}
	s.csv.Flush()
	s.buffer.WriteString("\"\"\n")
	return nil
}

func (s *stream) row(values []any) error {
	if s.csv == nil {
		s.buffer.Write(append(appendRow(s.buffer.AvailableBuffer(), s.columns, values), '\n'))
	} else {
		texts := make([]string, len(values))
		for i, v := range values {
			texts[i] = csvText(v)
		}
		if err := s.record(texts); err != nil {
			return err
		}
	}
	const most = 32 << 10
	if s.buffer.Len() < most {
		return nil
	}
	return s.flush()
}

func (s *stream) flush() error {
	if s.csv != nil {
		s.csv.Flush()
	}
	if !s.begun {
		for name, value := range s.headers {
			s.w.Header().Set(name, value)
		}
		// A client that does not read ends the query with its time. Not every connection has deadlines. An answer
		// that is an error is written after it.
		_ = s.control.SetWriteDeadline(s.deadline)
		s.begun = true
	}
	_, err := s.buffer.WriteTo(s.w)
	return err
}

func (s *stream) end(bool) error {
	err := s.flush()
	_ = s.control.SetWriteDeadline(time.Time{}) // the connection may serve other requests
	return err
}

// appendRow appends a row as a JSON object.
func appendRow(dst []byte, columns []ResultColumn, values []any) []byte {
	for i, v := range values {
		separator := byte(',')
		if i == 0 {
			separator = '{'
		}
		dst = append(appendJSON(append(dst, separator), columns[i].Name), ':')
		dst = appendJSON(dst, v)
	}
	return append(dst, '}')
}

// csvText is a value in CSV. NULL is empty.
func csvText(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case RawJSON:
		return string(v)
	}
	return strings.Trim(string(appendJSON(nil, value)), `"`)
}

// appendJSON appends a value of a result as JSON.
func appendJSON(dst []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return append(dst, "null"...)
	case RawJSON:
		if json.Valid(v) {
			return append(dst, v...)
		}
		value = string(v)
	case float64:
		if math.IsInf(v, 0) || math.IsNaN(v) {
			return append(dst, "null"...)
		}
	}
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // values of these types
	}
	return append(dst, data...)
}

// errTimeout is the cause of a query's context that has ended after the time of a query.
var errTimeout = errors.New("the query's time is over")

// errAgo is the error of the function ago.
var errAgo = errors.New("ago takes a duration such as '90m' or '24h'")

// apiError converts an error of a query to one of the API.
func apiError(ctx context.Context, sql string, timeout time.Duration, err error) error {
	var status *apierrors.StatusError
	var engine *sqlite3.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), errTimeout):
		return newError(http.StatusRequestTimeout, metav1.StatusReasonTimeout,
			fmt.Sprintf("the query took longer than %s", timeout))
	case ctx.Err() != nil:
		return changes.APIError(ctx.Err())
	case errors.As(err, &status):
		return status
	case errors.Is(err, errTooLarge), errors.Is(err, sqlite3.TOOBIG), errors.Is(err, sqlite3.NOMEM):
		return newError(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, errTooLarge.Error())
	case errors.Is(err, errEmpty), errors.Is(err, errTooDeep), errors.Is(err, errSeveral), errors.Is(err, errParameters):
		return badStatement(err.Error(), sql, "")
	case errors.Is(err, sqlite3.AUTH) && (!errors.As(err, &engine) || strings.HasSuffix(engine.Error(), "not authorized")):
		return badStatement("only one SELECT is allowed", sql, "")
	case errors.As(err, &engine):
		return badStatement(message(engine), sql, engine.SQL())
	case errors.Is(err, sqlstore.ErrUnavailable), errors.Is(err, sqlstore.ErrClosed), errors.Is(err, watch.ErrClosed):
		return changes.APIError(err)
	}
	klog.ErrorS(err, "A query has failed")
	return apierrors.NewInternalError(errors.New("the query has failed; the server's log has the cause"))
}

// unreadable returns the error for an object that can't be read. It is nil for one that can't be decrypted or decoded,
// of which all values are NULL, as any that does not fit. One that can be read later is an error.
func unreadable(ctx context.Context, err error) error {
	if encoding.IsOfAbsentPlugin(err) {
		return apierrors.NewTimeoutError("the KMS plugin that decrypts an object does not answer", 1)
	}
	if apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) {
		return err
	}
	return ctx.Err()
}

// message is what SQLite says is wrong with a statement.
func message(err *sqlite3.Error) string {
	text := strings.TrimPrefix(err.Error(), "sqlite3: ")
	for _, code := range []string{"SQL logic error: ", "authorization denied: "} {
		text = strings.TrimPrefix(text, code)
	}
	return text
}

// badStatement returns the error 400 for a statement. rest is what of it begins where the error is; empty if
// that is not known.
func badStatement(message, sql, rest string) error {
	cause := metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec.sql", Message: message}
	if rest != "" && strings.HasSuffix(sql, rest) {
		before := sql[:len(sql)-len(rest)]
		line, column := 1+strings.Count(before, "\n"), 1+len([]rune(before[strings.LastIndexByte(before, '\n')+1:]))
		message = fmt.Sprintf("%s, at line %d, column %d", message, line, column)
		cause.Message = message
	}
	err := newError(http.StatusBadRequest, metav1.StatusReasonBadRequest, message)
	err.ErrStatus.Details = &metav1.StatusDetails{Group: GroupName, Kind: queries.Resource,
		Causes: []metav1.StatusCause{cause}}
	return err
}

func newError(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason,
		Message: message}}
}
