package crd_test

import (
	"net/http"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"byre/sqlstore"
)

// change updates the definition with the name. Controllers may update its status meanwhile.
func (s *server) change(t *testing.T, name string, change func(*apiextensionsv1.CustomResourceDefinition)) (updated *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	definitions := s.definitions.ApiextensionsV1().CustomResourceDefinitions()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		crd, err := definitions.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(crd)
		updated, err = definitions.Update(t.Context(), crd, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return updated
}

// TestRequest_KeepsItsDefinition removes a version while a request for it is being served: the
// definition that a read began with serves it to its end. A write takes effect by the definition
// that is there when it is committed; there is none for it then.
func TestRequest_KeepsItsDefinition(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		for _, test := range []struct {
			name, method, body string
			header             []string
			want               int
		}{
			{"read", http.MethodGet, "", nil, http.StatusOK},
			{"write", http.MethodPatch, `{"spec":{"image":"i"}}`, []string{"Content-Type", "application/merge-patch+json"}, http.StatusNotFound},
		} {
			t.Run(test.name, func(t *testing.T) {
				c := newConverter(t)
				s.defineConverted(t, c)
				if w := s.do(t, http.MethodPost, crontabPath("v1"), crontab("v1", "a", `{"schedule":"* *"}`)); w.Code != http.StatusCreated {
					t.Fatalf("%d %s", w.Code, w.Body)
				}
				// The first conversion drops v1beta1 from the definition.
				var once sync.Once
				drop := func(*apiextensionsv1.ConversionResponse) {
					once.Do(func() {
						s.change(t, "crontabs.example.com", func(crd *apiextensionsv1.CustomResourceDefinition) {
							crd.Spec.Versions = crd.Spec.Versions[:1]
							crd.Spec.Conversion = nil
						})
					})
				}
				c.spoil.Store(&drop)
				w := s.do(t, test.method, crontabPath("v1beta1")+"/a", test.body, test.header...)
				if w.Code != test.want {
					t.Fatalf("%d %s", w.Code, w.Body)
				}
				if w.Code == http.StatusOK {
					if diff := cmp.Diff(map[string]any{"cron": "* *"}, spec(t, w.Body.Bytes())); diff != "" {
						t.Errorf("(-want +got):\n%s", diff)
					}
				}
				if w := s.do(t, http.MethodGet, crontabPath("v1beta1")+"/a", ""); w.Code != http.StatusNotFound {
					t.Errorf("the version that was dropped answers %d", w.Code)
				}
				definitions := s.definitions.ApiextensionsV1().CustomResourceDefinitions()
				if err := definitions.Delete(t.Context(), "crontabs.example.com", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				s.await(t, "crontabs.example.com", gone)
			})
		}
	})
}

// TestEncoding_FollowsTheStoredSchema: the encoding of stored instances changes only with what
// their bytes depend on.
func TestEncoding_FollowsTheStoredSchema(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		c := newConverter(t)
		s.defineConverted(t, c)
		encodingOf := func(name string) string {
			t.Helper()
			if w := s.do(t, http.MethodPost, crontabPath("v1"), crontab("v1", name, `{"schedule":"* *"}`)); w.Code != http.StatusCreated {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			record, _, err := s.store.Get(t.Context(), sqlstore.Key{Group: "example.com", Resource: "crontabs", Owner: sqlstore.Custom, Namespace: "default", Name: name})
			if err != nil {
				t.Fatal(err)
			}
			return record.Encoding
		}
		first := encodingOf("a")
		s.change(t, "crontabs.example.com", func(crd *apiextensionsv1.CustomResourceDefinition) {
			config := crd.Spec.Conversion.Webhook.ClientConfig
			config.CABundle = append(config.CABundle, '\n')
			crd.Spec.Versions[1].Schema.OpenAPIV3Schema.Description = "not the stored one"
			crd.Spec.Names.ShortNames = []string{"ct"}
		})
		if encoding := encodingOf("b"); encoding != first {
			t.Errorf("the encoding became %s, was %s", encoding, first)
		}
		s.change(t, "crontabs.example.com", func(crd *apiextensionsv1.CustomResourceDefinition) {
			spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
			spec.Properties["user"] = apiextensionsv1.JSONSchemaProps{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"root"`)}}
		})
		if encoding := encodingOf("c"); encoding == first {
			t.Error("the encoding stayed although there is a new default")
		}
	})
}
