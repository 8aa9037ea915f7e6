package aggregator

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	generated "k8s.io/kube-aggregator/pkg/generated/openapi"
	apiservice "k8s.io/kube-aggregator/pkg/registry/apiservice/etcd"

	"byre/apiserver/handlers"
	"byre/apiserver/process"
	"byre/apiserver/query"
)

// apiServices is the resource of the APIServices. Its keys are those of a stock
// kube-apiserver.
var apiServices = schema.GroupResource{Group: apiregistration.GroupName, Resource: "apiservices"}

// newGroup makes the handler of the API group apiregistration.k8s.io, and the table of its objects.
func newGroup(d process.Dependencies, delegate http.Handler) (*handlers.API, *query.BuiltinTables, error) {
	scheme := handlers.NewScheme(install.Install)
	codecs := handlers.NewCodecs(scheme)
	getter := d.RESTOptions(scheme, codecs, apiServices)
	services := apiservice.NewREST(scheme, getter)
	version := apiregistrationv1.SchemeGroupVersion.Version
	group := handlers.Group{
		Name:     apiregistration.GroupName,
		Versions: []string{version},
		Storage: map[string]map[string]rest.Storage{
			version: {
				"apiservices":        services,
				"apiservices/status": apiservice.NewStatusREST(scheme, services),
			},
		},
		Scheme:         scheme,
		Codecs:         codecs,
		ParameterCodec: metav1.ParameterCodec,
	}
	api, schemas, err := d.ServeGroup("registration", group, generated.GetOpenAPIDefinitions, delegate)
	if err != nil {
		return nil, nil, err
	}
	tables, err := query.NewBuiltinTables([]handlers.Group{group}, getter.Lookup, schemas)
	return api, tables, err
}
