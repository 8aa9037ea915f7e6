package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"byre/sqlstore"
	"byre/sqlstore/etcd"
)

// source is a Source of the given entries.
type source []etcd.KeyValue

func (s source) Revision() int64 { return s[len(s)-1].Revision }

func (s source) Len() int { return len(s) }

func (s source) Each(_ context.Context, yield func(etcd.KeyValue) error) error {
	for _, kv := range s {
		if err := yield(kv); err != nil {
			return err
		}
	}
	return nil
}

func newTranslator(t *testing.T, change ...func(*Options)) *Translator {
	t.Helper()
	options := Options{Now: time.Now().UTC()}
	for _, c := range change {
		c(&options)
	}
	translator, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	return translator
}

// pod is a pod as a stock server stores it.
func pod(t *testing.T, name string) []byte {
	t.Helper()
	return inProtobuf(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid-of-" + "pod"},
		Spec:       corev1.PodSpec{NodeName: "node"},
	})
}

// inProtobuf is an object as a stock server stores it.
func inProtobuf(t *testing.T, object runtime.Object) []byte {
	t.Helper()
	info, _ := runtime.SerializerInfoForMediaType(legacyscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(object)
	if err != nil {
		t.Fatal(err)
	}
	object.GetObjectKind().SetGroupVersionKind(kinds[0])
	var out bytes.Buffer
	if err := legacyscheme.Codecs.EncoderForVersion(info.Serializer, kinds[0].GroupVersion()).Encode(object,
		&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

const widget = `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w","namespace":"ns","uid":"uid-of-widget"},"n":1.50,"Kind":{"a":1},"Metadata":{"name":"x"}}`

func cluster(t *testing.T) source {
	return source{
		{Key: "compact_rev_key", Value: []byte("1"), Created: 1, Revision: 1},
		{Key: "/registry/pods/ns/p", Value: pod(t, "p"), Created: 2, Revision: 3, TTL: time.Hour},
		{Key: "/registry/example.com/widgets/ns/w", Value: []byte(widget + "\n"), Created: 4, Revision: 4},
		{Key: "/registry/ranges/servicenodeports", Value: []byte("k8s\x00"), Created: 5, Revision: 5},
		{Key: "/registry/masterleases/10.0.0.1", Value: []byte("k8s\x00"), Created: 6, Revision: 6},
		{Key: "/registry/secrets/ns/s", Value: []byte("k8s:enc:aescbc:v1:key1:\x00\xff"), Created: 7, Revision: 7},
	}
}

func rowsOf(t *testing.T, translator *Translator, from source) []*sqlstore.ObjectRow {
	t.Helper()
	snapshot := translator.Import(t.Context(), from)
	var rows []*sqlstore.ObjectRow
	for row, err := range snapshot.Checked().Objects {
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	return rows
}

func snapshotOf(rows []*sqlstore.ObjectRow) sqlstore.Snapshot {
	return sqlstore.Snapshot{Header: sqlstore.Header{Revision: 7},
		Objects: func(yield func(*sqlstore.ObjectRow, error) bool) {
			for _, row := range slices.Backward(rows) {
				if !yield(row, nil) {
					return
				}
			}
		}}
}

func TestTransfer_RoundTripKeepsObjects(t *testing.T) {
	t.Parallel()
	translator, from := newTranslator(t), cluster(t)
	found, err := translator.Summarize(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	if found.Objects() != 3 || found.Resources() != 3 || found.Encrypted != 1 || len(found.LeftOut) != 3 {
		t.Errorf("found %d objects of %d resources, %d encrypted, left out %v", found.Objects(), found.Resources(),
			found.Encrypted, found.LeftOut)
	}
	rows := rowsOf(t, translator, from)
	var stored []string
	for _, r := range rows {
		stored = append(stored,
			fmt.Sprintf("%s/%s %s %s/%s uid %s, %d-%d, expires %v: %s", r.Group, r.Resource, r.Owner, r.Namespace, r.Name, r.UID,
				r.Created, r.Revision,
				!r.Expires.IsZero(), r.Value))
	}
	for i, want := range []string{
		`/pods builtin ns/p uid uid-of-pod, 2-3, expires true: {"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"ns"`,
		`example.com/widgets custom ns/w uid uid-of-widget, 4-4, expires false: ` + widget,
		`/secrets builtin ns/s uid , 7-7, expires false: "k8s:enc:aescbc:v1:key1:AP8="`,
	} {
		if len(stored) != 3 || !strings.HasPrefix(stored[i], want) {
			t.Fatalf("stored is %q, want %q", stored, want)
		}
	}
	copied, err := translator.SummarizeRows(snapshotOf(rows))
	if err != nil {
		t.Fatal(err)
	}
	if err := found.Compare(copied); err != nil || found.Hash() != copied.Hash() {
		t.Errorf("the sides differ: %v", err)
	}
	var back source
	exported, err := translator.Export(snapshotOf(rows), func(kv etcd.KeyValue) error {
		back = append(back, kv)
		return nil
	})
	if err != nil || found.Compare(exported) != nil {
		t.Fatalf("export: %v, %v", err, found.Compare(exported))
	}
	slices.Reverse(back)
	for i, want := range []etcd.KeyValue{from[1], from[2], from[5]} {
		got := back[i]
		// The value of the Pod is not compared: byre sets defaults when it stores one, as
		// any server does.
		if got.Key != want.Key || got.Created != want.Created || got.Revision != want.Revision ||
			(got.TTL > 0) != (want.TTL > 0) {
			t.Errorf("%v comes back as %v", want, got)
		}
	}
	if !bytes.Equal(back[2].Value, from[5].Value) || string(back[1].Value) != widget {
		t.Errorf("values come back as %q and %q", back[2].Value, back[1].Value)
	}
}

// TestTransfer_KeepsWhatJSONWritesOtherwise: protobuf tells values apart that are one in JSON, and the copy equals its
// source nevertheless.
func TestTransfer_KeepsWhatJSONWritesOtherwise(t *testing.T) {
	t.Parallel()
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "o"}
	none, equivalent := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Equivalent
	for key, object := range map[string]runtime.Object{
		"validatingwebhookconfigurations/o": &admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "o"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "a.b.c", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new("https://a"), CABundle: []byte{}},
				SideEffects: &none, MatchPolicy: &equivalent, AdmissionReviewVersions: []string{"v1"},
			}}},
		"events/ns/o": &corev1.Event{ObjectMeta: meta, Message: "cut inside of a character: \xe2\x82"},
		"controllerrevisions/ns/o": &appsv1.ControllerRevision{ObjectMeta: meta,
			Data: runtime.RawExtension{Raw: []byte(`{"a": "<"}`)}},
		"leases/ns/o": &coordinationv1.Lease{ObjectMeta: meta,
			Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{}}},
	} {
		translator, from := newTranslator(t),
			source{{Key: "/registry/" + key, Value: inProtobuf(t, object), Created: 1, Revision: 1}}
		found, err := translator.Summarize(t.Context(), from)
		if err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		copied, err := translator.SummarizeRows(snapshotOf(rowsOf(t, translator, from)))
		if err != nil {
			t.Errorf("%s: %v", key, err)
		} else if err := found.Compare(copied); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// TestSummary_TellsAnyDifference: the hash covers all that an import or export must keep.
func TestSummary_TellsAnyDifference(t *testing.T) {
	t.Parallel()
	translator := newTranslator(t)
	found, err := translator.Summarize(t.Context(), cluster(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func([]*sqlstore.ObjectRow) []*sqlstore.ObjectRow{
		"a row is lost": func(rows []*sqlstore.ObjectRow) []*sqlstore.ObjectRow { return rows[1:] },
		"a revision":    func(rows []*sqlstore.ObjectRow) []*sqlstore.ObjectRow { rows[1].Revision++; return rows },
		"a creation":    func(rows []*sqlstore.ObjectRow) []*sqlstore.ObjectRow { rows[0].Created--; return rows },
		"an expiry": func(rows []*sqlstore.ObjectRow) []*sqlstore.ObjectRow {
			rows[0].Expires = time.Time{}
			return rows
		},
		"an object's spec": replaceIn(0, `"nodeName":"node"`, `"nodeName":"other"`),
		"an instance":      replaceIn(1, `1.50`, `1.5`),
		"a cipher text":    replaceIn(2, `AP8=`, `AP4=`),
		"a name": func(rows []*sqlstore.ObjectRow) []*sqlstore.ObjectRow {
			rows[2].Name = "other"
			return rows
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			translator := newTranslator(t)
			copied, err := translator.SummarizeRows(snapshotOf(change(rowsOf(t, translator, cluster(t)))))
			if err != nil {
				t.Fatal(err)
			}
			var mismatch *MismatchError
			if err := found.Compare(copied); !errors.As(err, &mismatch) || found.Hash() == copied.Hash() {
				t.Errorf("not told: %v", err)
			}
		})
	}
}

func replaceIn(i int, old, changed string) func([]*sqlstore.ObjectRow) []*sqlstore.ObjectRow {
	return func(rows []*sqlstore.ObjectRow) []*sqlstore.ObjectRow {
		rows[i].Value = bytes.ReplaceAll(rows[i].Value, []byte(old), []byte(changed))
		return rows
	}
}

func TestSummarize_Refuses(t *testing.T) {
	t.Parallel()
	good := cluster(t)
	for name, c := range map[string]struct {
		kv   etcd.KeyValue
		want string
	}{
		"a resource that was removed": {etcd.KeyValue{Key: "/registry/podsecuritypolicy/p", Value: []byte("k8s\x00")},
			"/registry/podsecuritypolicy/p; leave them out with --skip-prefix"},
		"a key without a name": {etcd.KeyValue{Key: "/registry/namespaces/"}, "of no resource"},
		"a key below a name":   {etcd.KeyValue{Key: "/registry/pods/ns/p/q"}, "of no resource"},
		"another program's below the group": {etcd.KeyValue{Key: "/registry/a.example.com/b.example.com/flunders/ns/f"},
			"of no resource"},
		"what can't be decoded": {etcd.KeyValue{Key: "/registry/pods/ns/q", Value: []byte("moo")},
			"/registry/pods/ns/q at revision 8: "},
		"an object under another name": {etcd.KeyValue{Key: "/registry/pods/ns/q", Value: pod(t, "p")},
			"another namespace or name"},
		"an instance that is no JSON": {etcd.KeyValue{Key: "/registry/example.com/widgets/ns/q", Value: []byte("moo")},
			"not JSON"},
		"a second key of one transaction": {etcd.KeyValue{Key: "/registry/pods/ns/q", Value: pod(t, "q"), Revision: 7},
			"a transaction that wrote another key too, at revision 7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.kv.Revision == 0 {
				c.kv.Revision = 8
			}
			c.kv.Created = c.kv.Revision
			from := append(slices.Clone(good), c.kv)
			if _, err := newTranslator(t).Summarize(t.Context(), from); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
			skipping := newTranslator(t, func(o *Options) { o.Skip = []string{c.kv.Key} })
			found, err := skipping.Summarize(t.Context(), from)
			if err != nil || found.LeftOut["skipped: "+c.kv.Key] != 1 {
				t.Errorf("it can't be skipped: %v", err)
			}
		})
	}
}

func TestSummarize_RefusesEncryptedValuesOfAnotherPrefix(t *testing.T) {
	t.Parallel()
	translator := newTranslator(t, func(o *Options) { o.Prefix = "/kubernetes.io" })
	_, err := translator.Summarize(t.Context(),
		source{{Key: "/kubernetes.io/secrets/ns/s", Value: []byte("k8s:enc:aescbc:v1:key1:\x00"), Created: 1, Revision: 1}})
	if err == nil || !strings.Contains(err.Error(), "give its resource the provider identity") {
		t.Errorf("the error is %v", err)
	}
}

// TestTable_HasEveryResource: each row's key leads back to the row, and the prefixes equal
// those of a stock server.
func TestTable_HasEveryResource(t *testing.T) {
	t.Parallel()
	table := newTranslator(t).table
	for prefix, want := range map[string]string{
		"services/specs": "services", "services/endpoints": "endpoints", "minions": "nodes",
		"controllers": "replicationcontrollers",
		"ingress":     "ingresses.networking.k8s.io", "leases": "leases.coordination.k8s.io", "events": "events",
		"apiregistration.k8s.io/apiservices":             "apiservices.apiregistration.k8s.io",
		"apiextensions.k8s.io/customresourcedefinitions": "customresourcedefinitions.apiextensions.k8s.io",
	} {
		if r := table.byPrefix[prefix]; r == nil || r.GroupResource.String() != want {
			t.Errorf("%s is %v, want %s", prefix, r, want)
		}
	}
	for prefix, r := range table.byPrefix {
		for _, key := range []sqlstore.Key{
			{Group: r.Group, Resource: r.Resource, Name: "name"},
			{Group: r.Group, Resource: r.Resource, Namespace: "ns", Name: "name"},
			{Group: r.Group + ".example.com", Resource: r.Resource, Owner: sqlstore.Custom, Name: "name"},
		} {
			path, _, _, err := table.key(key)
			if err != nil {
				t.Fatal(err)
			}
			if at, reason, err := table.find(path); err != nil || reason != "" || at.Key != key {
				t.Errorf("%s: %v is under %s, where %v is (%s, %v)", prefix, key, path, at.Key, reason, err)
			}
		}
	}
}
