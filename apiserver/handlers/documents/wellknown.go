package documents

import (
	"net/http"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/version"
)

const mediaJSON = "application/json"

// VersionRoot describes /version.
func VersionRoot() Root {
	return singleGetRoot(restful.Route{
		Path:        "/version/",
		Operation:   "getCodeVersion",
		Doc:         "get the version information for this server",
		Consumes:    []string{mediaJSON},
		Produces:    []string{mediaJSON},
		WriteSample: version.Info{},
	})
}

// TokenIssuerRoots describe the OpenID metadata with which others verify service account
// tokens.
func TokenIssuerRoots() []Root {
	return []Root{
		singleGetRoot(restful.Route{
			Path:        "/.well-known/openid-configuration/",
			Operation:   "getServiceAccountIssuerOpenIDConfiguration",
			Doc:         "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
			Produces:    []string{mediaJSON},
			WriteSample: "",
		}),
		singleGetRoot(restful.Route{
			Path:        "/openid/v1/jwks/",
			Operation:   "getServiceAccountIssuerOpenIDKeyset",
			Doc:         "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
			Produces:    []string{"application/jwk-set+json"},
			WriteSample: "",
		}),
	}
}

// singleGetRoot returns the root of one GET operation.
func singleGetRoot(op restful.Route) Root {
	op.Method = http.MethodGet
	return Root{
		Path:       op.Path[1 : len(op.Path)-1],
		Operations: func() ([]restful.Route, error) { return []restful.Route{op}, nil },
		Routes:     []string{op.Method + " " + op.Path},
	}
}
