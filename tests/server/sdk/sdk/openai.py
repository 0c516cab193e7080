from openai import OpenAI

client, messages = OpenAI(), [{"role": "user", "content": "hello"}]
print(client.chat.completions.create(model="m", messages=messages).choices[0].message.content)
stream = client.chat.completions.create(model="m", messages=messages, stream=True)
print("".join(part.choices[0].delta.content or "" for part in stream))
print(client.responses.create(model="m", input="hello").output_text)
with client.responses.stream(model="m", input="hello") as stream:
    stream.until_done()
    print(stream.get_final_response().output_text)
print(client.embeddings.create(model="m", input="hello").data[0].embedding)
print([model.id for model in client.models.list()])
