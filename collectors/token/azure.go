package token

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"golang.org/x/oauth2"
)

// AzureDatabase is the scope of a login to Azure Database for PostgreSQL.
const AzureDatabase = "https://ossrdbms-aad.database.windows.net/.default"

// EventHubs is the scope of a namespace of Event Hubs, by its host.
func EventHubs(host string) string { return "https://" + host + "/.default" }

// EntraID gives tokens of Entra ID for a scope, by the chain of Azure's
// library: environment, workload identity, managed identity, command line
// tools. client sends its requests, nil for the library's own.
func EntraID(scope string, client *http.Client) Source {
	var mu sync.Mutex
	var chain *azidentity.DefaultAzureCredential
	return Func(func(ctx context.Context) (*oauth2.Token, error) {
		mu.Lock()
		defer mu.Unlock()
		if chain == nil {
			options := &azidentity.DefaultAzureCredentialOptions{}
			if client != nil {
				options.ClientOptions = azcore.ClientOptions{Transport: client}
			}
			c, err := azidentity.NewDefaultAzureCredential(options)
			if err != nil {
				return nil, fmt.Errorf("Entra ID: no credentials: %w", brief(err))
			}
			chain = c
		}
		token, err := chain.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{scope}})
		if err != nil {
			return nil, fmt.Errorf("Entra ID: no token; give the pod or machine an identity: %w", brief(err))
		}
		return &oauth2.Token{AccessToken: token.Token, Expiry: token.ExpiresOn}, nil
	})
}

// fetchTimeout is how long an endpoint may take to answer.
const fetchTimeout = 10 * time.Second
