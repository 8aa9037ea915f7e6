package query

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

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
		row := metav1.TableRow{Cells: make([]any, len(values)), Object: runtime.RawExtension{Object: &metav1.PartialObjectMetadata{}}}
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
	return &Handler{s, admission.WithAudit(plugins), admission.NewObjectInterfacesFromScheme(scheme), serializer.NewCodecFactory(scheme), delegate}
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
		serve = metrics.InstrumentHandlerFunc(http.MethodPost, GroupName, groupVersion.Version, queries.Resource, "", "cluster", metrics.APIServerComponent, false, "", serve)
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
		if body, err = json.Marshal(&Query{TypeMeta: metav1.TypeMeta{Kind: queryKind.Kind, APIVersion: groupVersion.String()}, Spec: Spec{SQL: string(body)}}); err != nil {
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
	if audit.AuditContextFrom(audit.WithAuditContext(req.Context())).GetEventLevel() == auditinternal.LevelRequestResponse {
		return newError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "the audit policy records answers, which it can't of a stream: ask for JSON")
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
	options := &metav1.CreateOptions{TypeMeta: metav1.TypeMeta{APIVersion: metav1.SchemeGroupVersion.String(), Kind: "CreateOptions"}}
	attributes := admission.NewAttributesRecord(q, nil, queryKind, "", "", queries, "", admission.Create, options, false, who)
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
	s.headers[revisionHeader], s.headers[columnsHeader], s.headers[LimitHeader] = h.revision, string(appendJSON(nil, h.columns)), strconv.FormatInt(h.most, 10)
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
