package openapi

import (
	"net/http"

	"k8s.io/apimachinery/pkg/version"
)

const mediaJSON = "application/json"

// VersionRoot describes /version.
func VersionRoot() Root {
	return singleGetRoot(Operation{
		Path:     "/version/",
		Name:     "getCodeVersion",
		Doc:      "get the version information for this server",
		Consumes: []string{mediaJSON},
		Produces: []string{mediaJSON},
		Response: version.Info{},
	})
}

// TokenIssuerRoots describe the OpenID metadata with which others verify service account
// tokens.
func TokenIssuerRoots() []Root {
	return []Root{
		singleGetRoot(Operation{
			Path:     "/.well-known/openid-configuration/",
			Name:     "getServiceAccountIssuerOpenIDConfiguration",
			Doc:      "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
			Produces: []string{mediaJSON},
			Response: "",
		}),
		singleGetRoot(Operation{
			Path:     "/openid/v1/jwks/",
			Name:     "getServiceAccountIssuerOpenIDKeyset",
			Doc:      "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
			Produces: []string{"application/jwk-set+json"},
			Response: "",
		}),
	}
}

// singleGetRoot returns the root of one GET operation.
func singleGetRoot(op Operation) Root {
	op.Method = http.MethodGet
	return Root{
		Path:       op.Path[1 : len(op.Path)-1],
		Operations: func() ([]Operation, error) { return []Operation{op}, nil },
		Routes:     []string{op.Method + " " + op.Path},
	}
}
