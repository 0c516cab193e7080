from google import genai

client = genai.Client()
print(client.models.generate_content(model="m", contents="hello").text)
stream = client.models.generate_content_stream(model="m", contents="hello")
print("".join(part.text or "" for part in stream))
print(client.models.count_tokens(model="m", contents="hello").total_tokens > 0)
print(client.models.embed_content(model="m", contents="hello").embeddings[0].values)
