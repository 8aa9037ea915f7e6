package handlers

import (
	"bytes"
	"context"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"byre/apiserver/storage"
	"byre/apiserver/storage/encoding"
)

// jsonFormat is JSON, either of whole objects or of their metadata only.
type jsonFormat struct {
	e      *encoded
	stored *encoding.Format
	// head is the text with which a list begins.
	head string
	// partial is true for metadata. item is the text with which an item begins, in
	// version.
	partial bool
	version schema.GroupVersion
	item    string
}

func (f *jsonFormat) objects() *encoding.Format { return f.stored }

func (f *jsonFormat) mediaType() string { return runtime.ContentTypeJSON }

func (f *jsonFormat) streamType() string { return runtime.ContentTypeJSON }

func (f *jsonFormat) append(dst []byte, o encoding.Encoded, typeMeta bool) []byte {
	if !f.partial {
		return o.AppendJSON(dst, typeMeta)
	}
	dst = append(dst, f.item...)
	return append(o.AppendMetadataJSON(dst), '}')
}

func (f *jsonFormat) appendObject(dst []byte, o encoding.Encoded) []byte {
	return append(f.append(dst, o, true), '\n')
}

func (f *jsonFormat) appendEvent(dst []byte, event string, o encoding.Encoded) ([]byte, int) {
	start := len(dst)
	dst = append(dst, `{"type":"`...)
	dst = append(dst, event...)
	dst = append(dst, `","object":`...)
	dst = f.append(dst, o, true)
	dst = append(dst, "}\n"...)
	return dst, len(dst) - start
}

// appendError appends a Status, which can always be encoded.
func (f *jsonFormat) appendError(dst []byte, status *metav1.Status) []byte {
	text, _ := json.Marshal(status)
	dst = append(dst, `{"type":"`...)
	dst = append(dst, apiwatch.Error...)
	dst = append(dst, `","object":`...)
	dst = append(dst, text...)
	return append(dst, "}\n"...)
}

func (f *jsonFormat) writeList(_ context.Context, out *answerWriter, list *storage.EncodedList) error {
	out.buf = f.appendHead(out.buf, list)
	isEmpty := true
	for object, err := range list.Items {
		if err != nil {
			return err
		}
		switch {
		case !isEmpty:
			out.buf = append(out.buf, ',')
		case f.partial:
			out.buf = append(out.buf, '[')
		}
		isEmpty = false
		out.buf = f.append(out.buf, object, false)
		if out.flush(); out.err != nil {
			return nil // the client is gone
		}
	}
	switch {
	case !isEmpty || !f.partial:
		out.buf = append(out.buf, "]}\n"...)
	default:
		out.buf = append(out.buf, "null}\n"...) // upstream's empty list of metadata has null
	}
	out.close()
	return nil
}

// listHead returns the text with which a list of a kind begins, up to the value of its
// metadata.
func (e *encoded) listHead(gv schema.GroupVersion, kind string) string {
	return `{"kind":"` + kind + `","apiVersion":"` + gv.String() + `","metadata":`
}

// appendHead appends the text of the list up to its first item. Encoding the list's
// metadata can't fail.
func (f *jsonFormat) appendHead(dst []byte, list *storage.EncodedList) []byte {
	head := listMeta(list)
	meta, _ := json.Marshal(head)
	if f.e.unstructured && !f.partial {
		meta, _ = json.Marshal(unstructuredListMeta{head, list.Continue})
	}
	dst = append(dst, f.head...)
	dst = append(dst, meta...)
	dst = append(dst, `,"items":`...)
	if !f.partial {
		dst = append(dst, '[')
	}
	return dst
}

func listMeta(list *storage.EncodedList) metav1.ListMeta {
	return metav1.ListMeta{
		ResourceVersion:    list.ResourceVersion,
		Continue:           list.Continue,
		RemainingItemCount: list.RemainingItemCount,
	}
}

// unstructuredListMeta is the metadata of a list of objects without a Go type. It has
// the member continue even if that is empty.
type unstructuredListMeta struct {
	metav1.ListMeta `json:",inline"`
	Continue        string `json:"continue"`
}

// marshalJSON encodes as upstream's serializer does, but without the newline at the
// end.
func marshalJSON(object any) ([]byte, error) {
	var buf bytes.Buffer
	err := json.NewEncoder(&buf).Encode(object)
	return bytes.TrimRight(buf.Bytes(), "\n"), err
}
