package endpoints_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	cliflag "k8s.io/component-base/cli/flag"

	"byre/apiserver/discovery"
	"byre/apiserver/endpoints"
	"byre/sqlstore/storetest"
	"byre/watch"
	"byre/watch/watchtest"
)

// TestDeprecatedLater: a version that is deprecated only in a release after the one
// that the server behaves as is not said to be.
func TestDeprecatedLater(t *testing.T) {
	store, feed := watchtest.Run(t, storetest.NewModel(), watch.Options{SoleWriter: true})
	groups := newGroups(t, store, feed, cliflag.ConfigurationMap{"admissionregistration.k8s.io/v1beta1": "true"})
	for _, test := range []struct {
		emulated   *version.Version
		path, want string
	}{
		{nil, "/api/v1/namespaces/field/endpoints", "deprecated in v1.33+"},
		{version.MajorMinor(1, 32), "/api/v1/namespaces/field/endpoints", ""},
		{version.MajorMinor(1, 33), "/api/v1/namespaces/field/endpoints", "deprecated in v1.33+"},
		{nil, "/apis/admissionregistration.k8s.io/v1beta1/mutatingadmissionpolicies", ""},
		{version.MajorMinor(1, 37), "/apis/admissionregistration.k8s.io/v1beta1/mutatingadmissionpolicies", "deprecated in v1.37+"},
	} {
		api, err := endpoints.New(endpoints.Config{
			Groups:    groups,
			Serving:   endpoints.Serving{Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer(), Emulated: test.emulated},
			Discovery: discovery.NewRegistry("192.0.2.7:6443"),
		})
		if err != nil {
			t.Fatal(err)
		}
		h := httptest.NewServer(filtered(api))
		resp, body := call{method: http.MethodGet, path: test.path}.answer(t, h)
		h.Close()
		if got := resp.Header.Get("Warning"); resp.StatusCode != http.StatusOK || (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s as %v: warning %q, want %q; %d %.200s", test.path, test.emulated, got, test.want, resp.StatusCode, body)
		}
	}
}
